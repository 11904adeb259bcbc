"""Every key of the viewer has the effect that the help describes, in a real browser."""

import re

import pytest

from places import WEB

pytestmark = pytest.mark.slow

SOURCE = WEB / "src" / "panels" / "commands.ts"
LENGTH = "camera.view.value.end - window.stagescopeViewer.camera.view.value.start"

# key: (what is done before, what is looked at, what it was, what it became); None: anything but what it was.
MOVES = {
    "w": (LENGTH, "less"),
    "+": (LENGTH, "less"),
    "=": (LENGTH, "less"),
    "s": (LENGTH, "more"),
    "-": (LENGTH, "more"),
    "a": ("camera.view.value.start", "less"),
    "d": ("camera.view.value.start", "more"),
    "]": ("camera.step.value.step", "more"),
    ".": ("camera.step.value.step", "more"),
    "[": ("camera.step.value.step", "less"),
    ",": ("camera.step.value.step", "less"),
    "0": (LENGTH, "more"),
    "Shift+W": ("display.pitch.value", "more"),
    "Shift+X": ("display.pitch.value", "less"),
}
FLAGS = {
    "c": "critical",
    "r": "arrows",
    "g": "idle",
    "e": "clocks",
    "x": "waits",
    "b": "comm",
    "o": "host",
    "t": "table",
    "v": "minimap",
}
OF_TEST = {
    "/", "Control+f", "n", "Shift+N", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "m", "i", "p", "h", "Shift+H",
    "Shift+G", "Shift+S", "l", "?", "Control+k", "Control+Shift+P", "f", "z", "Backspace", "PageDown", "PageUp",
    "Shift+F", "k",  # k: test_notes.py
}  # fmt: skip


def test_every_key_of_the_viewer_has_a_test():
    text = re.sub(r"//.*", "", SOURCE.read_text(encoding="utf-8"))
    keys = {key for part in re.findall(r"keys: \[(.*?)\],\s", text) for key in re.findall(r'"([^"]+)"', part)}
    keys = {key.replace("Ctrl", "Control") for key in keys} - {
        "Shift+?"
    }  # what ? arrives as on some keyboards
    assert keys == {*MOVES, *FLAGS, *OF_TEST}


def test_a_run_that_is_over_cannot_be_followed(shown):
    # That of a running training is in tests/viewer/server/test_live_page.py.
    shown.press("Shift+F")
    assert shown.of("toast.value.text") == "no training is running"
    assert not shown.of("live.isFollowing.value")


def test_keys_move_the_picture(shown):
    for key, (expression, becomes) in MOVES.items():
        shown.page.evaluate(
            "() => { const { camera } = window.stagescopeViewer; "
            "camera.view.value = camera.firstView(); camera.zoomBy(0.8); }"
        )
        shown.settle()
        before = shown.of(expression)
        shown.press(key)
        after = shown.of(expression)
        assert after < before if becomes == "less" else after > before, key


def test_zooming_out_and_moving_end_at_the_run(shown):
    for _ in range(30):
        shown.page.keyboard.press("s")
    shown.settle()
    assert shown.of("camera.view.value") == pytest.approx(shown.of("camera.bounds"))
    shown.press("a")
    shown.press("d")
    assert shown.of("camera.view.value") == pytest.approx(shown.of("camera.bounds"))


def test_undo_brings_back_what_was_seen_before(shown):
    first = shown.of("camera.view.value")
    shown.press("]")
    second = shown.of("camera.view.value")
    shown.press("0")
    shown.press("z")
    assert shown.of("camera.view.value") == second
    shown.press("Backspace")
    assert shown.of("camera.view.value") == first
    shown.press("z")  # nothing is left to undo
    assert shown.of("camera.view.value") == first


def test_focus_fits_the_selected_block_the_selection_or_the_step(shown):
    shown.press("w")
    shown.press("f")
    step = shown.of("camera.step.value")
    view = shown.of("camera.view.value")
    assert view["start"] < step["start"] < step["end"] < view["end"]
    assert view["end"] - view["start"] < 1.1 * (step["end"] - step["start"])
    shown.click(shown.id("backward", 1, 3))
    shown.press("f")
    assert shown.of(LENGTH) < 6 * shown.of("selection.selected.value.duration")
    shown.press("m")
    shown.press("f")
    assert shown.of(LENGTH) < 1.1 * shown.of("selection.selected.value.duration")


def test_keys_switch_what_the_picture_shows(shown):
    for key, flag in FLAGS.items():
        before = shown.of(f"display.flags.value.has('{flag}')")
        shown.press(key)
        assert shown.of(f"display.flags.value.has('{flag}')") is not before, key
        shown.press(key)
        assert shown.of(f"display.flags.value.has('{flag}')") is before, key
    assert [(shown.press("i"), shown.of("display.ideal.value"))[1] for _ in range(3)] == [
        "under",
        "over",
        "off",
    ]


def test_keys_pin_hide_group_and_sort_rows(shown):
    shown.press("p")
    assert "select a span first" in shown.page.locator("[role=status]").inner_text()
    shown.click(shown.id("forward", 2, 0))
    shown.press("p")
    assert shown.page.locator(".heading").all_inner_texts() == ["pinned", "other rows"]
    assert shown.page.locator(".row-label .rank").all_inner_texts() == [
        "rank 2",
        "rank 0",
        "rank 1",
        "rank 3",
    ]
    shown.press("p")
    shown.press("h")
    assert shown.page.locator(".row-label .rank").all_inner_texts() == ["rank 0", "rank 1", "rank 3"]
    shown.press("Shift+H")
    assert shown.page.locator(".row-label").count() == 4
    headings = [
        (shown.press("Shift+G"), shown.page.locator(".heading").all_inner_texts())[1] for _ in range(2)
    ]
    assert headings == [["stage 0", "stage 1", "stage 2", "stage 3"], ["machine node-0", "machine node-1"]]
    assert [(shown.press("Shift+S"), shown.of("display.rowChoice.value.sort"))[1] for _ in range(3)] == [
        "stage",
        "machine",
        "rank",
    ]


def test_arrow_keys_select_neighboring_spans_and_announce_them(shown):
    page = shown.page
    status = page.locator("[role=status]")
    shown.click(shown.id("forward", 1, 2))
    for key, words in [
        ("ArrowRight", "backward, stage 1, micro-batch 0, rank 1"),
        ("ArrowLeft", "forward, stage 1, micro-batch 2, rank 1"),
        ("ArrowUp", "forward, stage 0, micro-batch 3, rank 0"),
        ("ArrowDown", "rank 1"),
    ]:
        before = shown.of("selection.selected.value.id")
        shown.press(key)
        page.wait_for_function(f"() => {shown.js_selected()} !== {before}")
        shown.settle()
        assert words in status.inner_text(), key


def test_measuring_by_key_sums_the_time_of_the_selected_block_or_of_a_drag(shown):
    shown.click(shown.id("backward", 2, 3))
    shown.press("m")
    block, chosen = shown.of("selection.selected.value"), shown.of("selection.range.value")
    assert (chosen["start"], chosen["end"]) == (block["start"], block["start"] + block["duration"])
    assert chosen["rows"] == [0, 1, 2, 3]
    for _ in range(2):
        shown.press("Escape")
    assert (shown.of("selection.range.value"), shown.of("selection.selected.value")) == (None, None)
    shown.press("m")
    assert shown.of("selection.measuring.value") is True
    shown.press("Escape")
    assert shown.of("selection.measuring.value") is False


def test_help_names_every_command_and_the_palette_runs_them(shown):
    page = shown.page
    shown.press("?")
    help_text = page.locator("dialog").inner_text()
    for words in ("Zoom in", "Undo the last move", "Wheel, pinch", "stage:3 mb:7"):
        assert words in help_text
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    for key in ("Control+k", "Control+Shift+P"):
        shown.press(key)
        page.keyboard.type("whole run")
        assert page.locator("[role=option]").all_inner_texts() == ["Show the whole run\n0"]
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog", state="detached")
        assert shown.of("camera.view.value") == pytest.approx(shown.of("camera.bounds"))
        shown.press("z")


def test_the_search_box_has_a_key_and_gives_keys_back(shown):
    for key in ("/", "Control+f"):
        shown.press(key)
        assert shown.page.evaluate("() => document.activeElement.type") == "search"
        before = shown.of(LENGTH)
        shown.page.keyboard.type("w")  # a letter of the query, no zoom
        assert shown.of(LENGTH) == before
        shown.page.keyboard.press("Escape")
        assert shown.page.evaluate("() => document.activeElement.type") != "search"


def test_rows_that_do_not_fit_scroll_by_page(open_page, run_page):
    shown = open_page(run_page, "pitch=120", viewport={"width": 1200, "height": 480})
    shown.press("PageDown")
    assert shown.of("display.scroll.value") > 0
    shown.press("PageUp")
    assert shown.of("display.scroll.value") == 0


def test_link_key_shows_and_announces_that_the_link_was_copied(shown):
    shown.press("w")
    shown.press("l")
    shown.page.wait_for_selector(".toast", state="visible")
    assert "link" in shown.page.locator(".toast").inner_text()
    shown.page.wait_for_function("() => /link/.test(document.querySelector('[role=status]').textContent)")
    assert "#t=" in shown.page.url
