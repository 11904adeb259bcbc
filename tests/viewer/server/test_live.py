import threading
from types import SimpleNamespace

import pytest

from stagescope.viewer.server import live as live_module
from stagescope.viewer.server.live import VERSIONS_KEPT, LiveRun, Opener
from stagescope.vocabulary.errors import InputError


def run(version):
    return SimpleNamespace(version=version)


class Source:
    """Files that change under the control of the test."""

    def __init__(self):
        self.fingerprint, self.opened, self.error = "1", 0, None

    def open(self):
        self.opened += 1
        if self.error:
            raise self.error
        return run(f"v{self.fingerprint}")


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def live(source, monkeypatch):
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(live_module, "PAUSE_FACTOR", 0.0)
    return LiveRun(Opener(lambda: source.fingerprint, source.open), run("v1"), "1")


def look(live):
    live.look()
    for thread in threading.enumerate():
        if thread.name == "stagescope-refresh":
            thread.join(30)


def test_a_run_that_did_not_change_is_not_read_again(live, source):
    look(live)
    assert (live.current.version, source.opened) == ("v1", 0)


def test_a_run_that_changed_is_read_again_and_the_old_one_stays_for_its_pages(live, source):
    source.fingerprint = "2"
    look(live)
    assert live.current.version == "v2"
    assert live.version("v1").version == "v1"
    assert live.version("v2") is live.current
    assert live.version("v3") is None


def test_only_so_many_versions_are_kept(live, source):
    for fingerprint in ("2", "3", "4", "5"):
        source.fingerprint = fingerprint
        look(live)
    kept = [name for name in ("v1", "v2", "v3", "v4", "v5") if live.version(name)]
    assert kept == ["v3", "v4", "v5"]
    assert len(kept) == VERSIONS_KEPT


@pytest.mark.parametrize("error", [InputError("gone"), TypeError("gone")])
def test_unreadable_files_keep_the_last_version_and_set_the_problem(live, source, error):
    source.fingerprint, source.error = "2", error
    look(live)
    assert live.current.version == "v1"
    assert "gone" in live.problem
    source.error = None
    look(live)
    assert (live.current.version, live.problem) == ("v2", None)


def test_reading_goes_on_in_the_background_one_at_a_time(monkeypatch, source):
    may_end = threading.Event()
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)

    def slow():
        source.opened += 1
        assert may_end.wait(30)
        return run("v2")

    live = LiveRun(Opener(lambda: "2", slow), run("v1"), "1")
    for _ in range(5):
        live.look()
    assert live.current.version == "v1"
    may_end.set()
    look(live)
    assert (live.current.version, source.opened) == ("v2", 1)


def test_the_next_reading_waits_longer_than_the_last_one_took(source):
    live = LiveRun(Opener(lambda: source.fingerprint, source.open), run("v1"), "1")
    source.fingerprint = "2"
    look(live)
    source.fingerprint = "3"
    look(live)
    assert live.current.version == "v2"
