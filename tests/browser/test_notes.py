"""Notes: at a span or a time, in the link, and in the page saved as a file; their text is never HTML."""

import json
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><b>bold</b> & <!-- \u2028"
SHOWN = "</script><img src=x onerror=\"document.title='hit'\"><b>bold</b> & <!--"


def texts(shown):
    return shown.page.locator(".notes li bdi").all_inner_texts()


def write(shown, text):
    shown.press("k")
    shown.page.keyboard.insert_text(text)
    shown.press("Enter")
    shown.page.locator(".notes input").blur()


def test_a_note_at_a_span_is_marked_listed_and_in_the_link(open_page, run_page):
    shown = open_page(run_page)
    span = shown.id("backward", 2, 4)
    shown.click(span)
    write(shown, "slow here")
    assert texts(shown) == ["slow here"]
    note = shown.of("notes.all.value")[0]
    assert (note["rank"], note["time"]) == (
        2,
        shown.page.evaluate(f"() => window.stagescopeViewer.source.spans.span({span}).start"),
    )
    shown.page.wait_for_function("() => location.hash.includes('note=')")
    hash_ = shown.page.evaluate("() => location.hash.slice(1)")
    again = open_page(run_page, hash_)
    assert texts(again) == ["slow here"]
    again.page.evaluate("() => window.stagescopeViewer.camera.goToStep(0)")
    again.settle()
    again.page.locator(".notes li .link").click()
    again.settle()
    assert again.page.get_by_role("button", name="Note 1: slow here").is_visible()
    again.page.get_by_role("button", name="Remove note 1").click()
    again.page.wait_for_function("() => !location.hash.includes('note=')")
    assert again.page.locator(".note-marker").count() == 0


def test_a_note_without_a_selection_is_at_the_middle_of_the_view(shown):
    write(shown, "middle")
    note = shown.of("notes.all.value")[0]
    view = shown.of("camera.view.value")
    assert note["rank"] is None
    assert note["time"] == pytest.approx((view["start"] + view["end"]) / 2, abs=1)


@pytest.mark.parametrize("way", ["link", "file"])
def test_the_text_of_a_note_is_never_html(open_page, run_page, tmp_path, way):
    if way == "link":
        shown = open_page(run_page, f"note=50000000@1~{quote(HOSTILE)}")
    else:
        first = open_page(run_page)
        write(first, HOSTILE)
        saved = save(first, tmp_path)
        content = saved.read_text(encoding="utf-8")
        assert content.count("</script>") == run_page.read_text(encoding="utf-8").count("</script>") + 1
        shown = open_page(saved)
    assert texts(shown) == [SHOWN]
    assert shown.page.locator(".notes img, .notes b, .chart img").count() == 0
    assert shown.page.title() != "hit"
    assert shown.page.locator(".note-marker").get_attribute("title") == SHOWN


def save(shown, folder):
    with shown.page.expect_download() as download:
        shown.page.get_by_role("button", name="Save the page with its notes").click()
    path = folder / "saved.html"
    download.value.save_as(path)
    return path


def test_a_saved_page_carries_its_notes_and_all_of_the_run(open_page, run_page, tmp_path):
    shown = open_page(run_page)
    write(shown, "first")
    saved = save(shown, tmp_path)
    again = open_page(saved)
    assert texts(again) == ["first"]
    assert again.of("meta.span_count") == shown.of("meta.span_count")
    again.page.wait_for_function("() => document.querySelectorAll('.ledger li').length > 0")
    write(again, "second")
    folder = tmp_path / "twice"
    folder.mkdir()
    twice = save(again, folder)
    content = twice.read_text(encoding="utf-8")
    assert content.count('id="stagescope-notes"') == 1
    assert sorted(texts(open_page(twice))) == ["first", "second"]
    block = content.split('id="stagescope-notes">')[1].split("</script>")[0]
    assert len(json.loads(block)) == 2


def test_notes_of_a_saved_page_that_were_all_removed_stay_removed_when_it_is_loaded_again(
    open_page, run_page, tmp_path
):
    shown = open_page(run_page)
    write(shown, "first")
    path = save(shown, tmp_path)
    saved = open_page(path)
    saved.page.get_by_role("button", name="Remove note 1").click()
    saved.page.wait_for_function("() => /note=(&|$)/.test(location.hash)")
    again = open_page(path, saved.page.evaluate("() => location.hash.slice(1)"))
    assert texts(again) == []
