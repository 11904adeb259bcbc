import stat
import webbrowser

from stagescope.viewer.server.launch import lead_file, open_browser


def test_only_its_owner_can_read_the_file_that_leads_to_the_link():
    path = lead_file("http://127.0.0.1:1/?token=a&b=<")
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert 'content="0; url=http://127.0.0.1:1/?token=a&amp;b=&lt;"' in path.read_text()
    finally:
        path.unlink()


def test_the_browser_is_given_no_token(monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    thread = open_browser("http://127.0.0.1:1/?token=secret")
    thread.join(30)
    assert opened[0].startswith("file://")
    assert "secret" not in opened[0]
