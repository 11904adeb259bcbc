"""The ends of a selected range, rows that stay at the top, and the overview, in a real browser."""

import pytest

pytestmark = pytest.mark.slow

RANGE = "range=45000000-62000000@1-2"
ENDS = {"start": "Start of the selected range", "end": "End of the selected range"}


def handle(shown, end):
    return shown.page.get_by_role("slider", name=ENDS[end])


def per_pixel(shown):
    view = shown.of("camera.view.value")
    return (view["end"] - view["start"]) / shown.of("display.size.value.width")


def drag(shown, end, by):
    box = handle(shown, end).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x + by / 2, y)
    shown.page.mouse.move(x + by, y)
    shown.page.mouse.up()
    shown.settle()


def test_the_ends_of_a_range_can_be_dragged_and_its_statistics_follow(open_page, run_page):
    shown = open_page(run_page, RANGE)
    drag(shown, "end", 60)
    chosen = shown.of("selection.range.value")
    assert chosen["end"] == pytest.approx(62_000_000 + 60 * per_pixel(shown), rel=1e-3)
    assert (chosen["start"], chosen["rows"]) == (45_000_000, [1, 2])
    shown.page.wait_for_function(
        "() => { const { statistics, range } = window.stagescopeViewer.selection;"
        " return statistics.value?.end === range.value.end; }"
    )
    drag(shown, "start", 4000)  # beyond the other end
    chosen = shown.of("selection.range.value")
    assert chosen["start"] == chosen["end"] - 1


def test_the_ends_of_a_range_can_be_moved_with_the_keyboard_and_are_read_out(open_page, run_page):
    shown = open_page(run_page, RANGE)
    slider = handle(shown, "start")
    assert slider.get_attribute("aria-valuetext").endswith("range of 17.00 ms")
    slider.focus()
    view = shown.of("camera.view.value")
    shown.press("ArrowRight")
    assert shown.of("selection.range.value.start") == round(45_000_000 + per_pixel(shown))
    shown.press("Shift+ArrowLeft")
    assert shown.of("selection.range.value.start") == pytest.approx(45_000_000 - 19 * per_pixel(shown), abs=2)
    assert shown.of("camera.view.value") == view
    assert shown.of("selection.selected.value") is None  # the arrow keys are those of the focused end


def test_pinned_rows_stay_while_the_others_scroll_and_can_be_clicked_there(open_page, run_page):
    shown = open_page(run_page, "pitch=200", viewport={"width": 1280, "height": 800})
    shown.page.evaluate(
        "() => { const v = window.stagescopeViewer; v.display.pin(3); v.display.setScroll(250); }"
    )
    shown.settle()
    labels = shown.page.locator(".row-label .rank").all_inner_texts()
    assert labels[0] == "rank 3"
    assert "rank 1" in labels
    top = shown.page.locator(".row-window").first.bounding_box()["y"]
    pinned = shown.page.locator(".row-label.pinned").bounding_box()
    assert pinned["y"] == pytest.approx(top + 22, abs=1)
    span = shown.id("backward", 3, 4)
    at = shown.spot(span)
    shown.page.mouse.click(at["x"], pinned["y"] + 60)
    shown.page.wait_for_function(f"() => {shown.js_selected()} === {span}")
    box = shown.page.locator(".canvas-box canvas").bounding_box()
    below = box["y"] + box["height"] - 30
    shown.page.mouse.move(at["x"], below)
    shown.settle()
    hovered = shown.page.evaluate(
        "() => window.stagescopeViewer.selection.hover.value?.row ?? window.stagescopeViewer.selection.hoverIdle.value"
    )
    assert hovered != 3
    shown.page.evaluate("() => window.stagescopeViewer.showSpan({ row: 2, start: 0, duration: 1 })")
    shown.settle()
    label = shown.page.locator(".row-label", has_text="rank 2").bounding_box()
    assert pinned["y"] + pinned["height"] - 1 <= label["y"] <= box["y"] + box["height"]


def test_the_box_of_the_overview_follows_the_view_and_moves_it(open_page, run_page):
    shown = open_page(run_page, "pitch=240", viewport={"width": 1280, "height": 720})
    whole = shown.page.locator(".minimap-window").bounding_box()
    box = shown.page.locator(".minimap-box").bounding_box()
    assert box["width"] < whole["width"] / 2
    assert box["height"] < whole["height"]
    before = shown.of("camera.view.value")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x + 100, y + 10)
    shown.page.mouse.up()
    shown.settle()
    after = shown.of("camera.view.value")
    bounds = shown.of("camera.bounds")
    moved = 100 / whole["width"] * (bounds["end"] - bounds["start"])
    assert after["start"] - before["start"] == pytest.approx(moved, rel=0.01)
    assert shown.of("display.scroll.value") > 0
    now = shown.page.locator(".minimap-box").bounding_box()
    assert now["x"] - box["x"] == pytest.approx(100, abs=2)
    shown.page.mouse.click(whole["x"] + 5, y)  # beside the box
    shown.settle()
    assert shown.of("camera.view.value.start") == pytest.approx(bounds["start"], abs=1)
    shown.press("v")
    assert shown.page.locator(".minimap").count() == 0
    shown.page.wait_for_function("() => location.hash.includes('with=arrows.idle.waits')")
