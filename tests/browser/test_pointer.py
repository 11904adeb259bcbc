"""Mouse, wheel and touch on the picture, in a real browser."""

import html

import pytest

from stagescope.analysis import build_report
from synthetic import Shape, pipeline_timeline, slowed_step

pytestmark = pytest.mark.slow

CHART = "document.querySelector('.canvas-box canvas')"
PINCH = """([x, y, from, to]) => {
    const canvas = document.querySelector('.canvas-box canvas');
    canvas.setPointerCapture = () => {};
    const send = (type, id, at) => canvas.dispatchEvent(new PointerEvent(type, {
        pointerId: id, pointerType: 'touch', clientX: at, clientY: y, button: 0, buttons: 1, bubbles: true }));
    send('pointerdown', 11, x - from); send('pointerdown', 12, x + from);
    for (let part = 1; part <= 5; part++) {
        const half = from + (to - from) * part / 5;
        send('pointermove', 11, x - half); send('pointermove', 12, x + half);
    }
    send('pointerup', 11, x - to); send('pointerup', 12, x + to);
}"""


def length(shown):
    return shown.of("camera.view.value.end") - shown.of("camera.view.value.start")


def time_at(shown, x):
    left = shown.page.evaluate(f"() => {CHART}.getBoundingClientRect().left")
    return shown.of("camera.view.value.start") + (x - left) / shown.of("display.size.value.width") * length(
        shown
    )


def test_the_wheel_zooms_at_the_pointer(shown):
    at = shown.spot(shown.id("backward", 1, 4))
    x = round(at["x"])  # browsers report whole pixels
    shown.page.mouse.move(x, at["y"])
    before, under = length(shown), time_at(shown, x)
    shown.page.mouse.wheel(0, -300)
    shown.settle()
    assert length(shown) < before
    assert time_at(shown, x) == pytest.approx(under, abs=before * 1e-6)


def test_the_wheel_moves_in_time_with_shift_or_sideways(shown):
    at = shown.spot(shown.id("backward", 1, 4))
    shown.page.mouse.move(at["x"], at["y"])
    for go in (lambda: shown.page.mouse.wheel(120, 0), lambda: _with_shift(shown, 120)):
        before, start = length(shown), shown.of("camera.view.value.start")
        go()
        shown.settle()
        assert length(shown) == pytest.approx(before)
        assert shown.of("camera.view.value.start") > start


def _with_shift(shown, by):
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, by)
    shown.page.keyboard.up("Shift")


def test_a_pinch_zooms_between_the_fingers(shown):
    at = shown.spot(shown.id("backward", 1, 4))
    before, under = length(shown), time_at(shown, at["x"])
    shown.page.evaluate(PINCH, [at["x"], at["y"], 40, 120])
    shown.settle()
    assert length(shown) == pytest.approx(before / 3, rel=0.02)
    assert time_at(shown, at["x"]) == pytest.approx(under, abs=before * 0.01)


def test_dragging_moves_the_picture_with_the_pointer(shown):
    shown.press("w")
    at = shown.spot(shown.id("backward", 1, 4))
    before, under = length(shown), time_at(shown, at["x"])
    drag(shown, at["x"], at["y"], at["x"] - 90, at["y"])
    assert length(shown) == pytest.approx(before)
    assert time_at(shown, at["x"] - 90) == pytest.approx(under, abs=before * 1e-3)
    assert shown.of("selection.selected.value") is None  # it was no click


def drag(shown, x, y, to_x, to_y):
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    for part in (0.3, 0.7, 1):
        shown.page.mouse.move(x + (to_x - x) * part, y + (to_y - y) * part)
    shown.page.mouse.up()
    shown.settle()


def test_dragging_with_shift_selects_the_rows_and_the_time_that_it_spans(shown):
    first, last = shown.spot(shown.id("forward", 1, 3)), shown.spot(shown.id("backward", 2, 3))
    expected = time_at(shown, first["left"]), time_at(shown, last["right"])
    shown.page.keyboard.down("Shift")
    drag(shown, first["left"], first["y"], last["right"], last["y"])
    shown.page.keyboard.up("Shift")
    chosen = shown.of("selection.range.value")
    assert chosen["rows"] == [1, 2]
    assert (chosen["start"], chosen["end"]) == pytest.approx(expected, abs=length(shown) * 1e-3)
    assert "on 2 rows" in shown.facts("Selection")["length"]


def test_a_click_selects_a_block_and_a_click_beside_it_none(shown):
    action = shown.id("backward", 2, 5)
    shown.click(action)
    assert shown.of("selection.selected.value.id") == action
    box = shown.page.locator(".canvas-box canvas").bounding_box()
    shown.page.mouse.click(box["x"] + 300, box["y"] + box["height"] - 5)
    shown.settle()
    assert shown.of("selection.selected.value") is None


def test_a_double_click_zooms_to_the_block(shown):
    action = shown.id("backward", 2, 5)
    at = shown.spot(action)
    shown.page.mouse.dblclick(at["x"], at["y"])
    shown.settle()
    assert length(shown) == pytest.approx(5 * shown.of("selection.selected.value.duration"), rel=0.3)


def test_hovering_shows_the_readout_of_a_span(shown):
    at = shown.spot(shown.id("backward", 2, 5))
    shown.page.mouse.move(at["x"], at["y"])
    shown.settle()
    words = shown.page.locator(".readout").inner_text()
    assert words.startswith("backward, stage 2, micro-batch 5, rank 2 · 2.000 ms")
    shown.page.mouse.move(5, 5)
    shown.settle()
    assert shown.page.locator(".readout").count() == 0


def test_the_buttons_of_a_row_pin_and_hide_it(shown):
    page = shown.page
    page.locator(".row-label", has_text="rank 3").hover()
    page.get_by_role("button", name="Pin rank 3 (P)").click()
    assert page.locator(".row-label .rank").first.inner_text() == "rank 3"
    page.locator(".row-label", has_text="rank 0").hover()
    page.get_by_role("button", name="Hide rank 0 (H)").click()
    assert page.locator(".row-label .rank").all_inner_texts() == ["rank 3", "rank 1", "rank 2"]
    page.get_by_role("button", name="Show 1 hidden row").click()
    assert page.locator(".row-label").count() == 4


def test_the_legend_hides_a_kind_and_the_steps_are_scrubbed(shown):
    page = shown.page
    page.get_by_role("button", name="forward").first.click()
    shown.settle()
    at = shown.spot(shown.id("forward", 0, 1))
    page.mouse.click(at["x"], at["y"])
    shown.settle()
    assert shown.of("selection.selected.value") is None  # what is not drawn cannot be hit
    bars = page.locator(".step-canvas canvas")
    box = bars.bounding_box()
    bars.click(position={"x": box["width"] * 5 / 6, "y": 30})  # the third of three bars
    assert shown.of("camera.step.value.step") == 2
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("ArrowLeft")
    assert shown.of("camera.step.value.step") == 1


def test_the_heat_map_goes_to_the_step_that_is_clicked(shown):
    shown.page.get_by_role("button", name="stage 2, step 0", exact=False).click()
    assert shown.of("camera.step.value.step") == 0


def test_the_map_of_ranks_and_its_largest_values_go_to_their_step(shown):
    panel = shown.page.locator("details", has_text="Ranks by steps")
    panel.locator("summary").click()
    cells = panel.locator("canvas")
    box = cells.bounding_box()
    cells.hover(position={"x": box["width"] - 3, "y": 3})
    assert "rank 0, step 2: " in panel.inner_text()
    assert "of the window)" in panel.inner_text()
    cells.click(position={"x": 3, "y": box["height"] - 3})
    assert shown.of("camera.step.value.step") == 0
    place = panel.locator(".places button").first
    step = int(place.inner_text().partition("step ")[2].partition(":")[0])
    place.click()
    assert shown.of("camera.step.value.step") == step


def test_a_cause_opens_into_what_it_comes_from_and_filters_the_idle_intervals(shown):
    cause = shown.page.locator(".ledger button", has_text="exposed communication")
    cause.click()
    assert shown.of("display.causeFilter.value") == "exposed_communication"
    assert cause.get_attribute("aria-expanded") == "true"
    row = shown.page.locator(".origins button", has_text="transfers from rank 2 to rank 3")
    row.click()
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.idleChain.value")
    facts = shown.facts("Selected span")
    assert (facts["rank"], facts["waiting for"]) == ("3", "a transfer")
    cause.click()
    assert shown.of("display.causeFilter.value") is None


IDLE_SPOT = """([row, wait]) => {
    const v = window.stagescopeViewer, idle = v.idle.value, view = v.camera.view.value;
    const unit = v.display.size.value.width;
    const place = idle.longest((i) => idle.row[i] === row && idle.waitingFor(i) === wait &&
        idle.start[i] >= view.start && idle.start[i] + idle.duration[i] <= view.end);
    const box = document.querySelector('.canvas-box canvas').getBoundingClientRect();
    const placed = v.display.rows.value.placed.find((one) => one.row === row);
    const middle = idle.start[place] + idle.duration[place] / 2;
    return [place, box.left + ((middle - view.start) / (view.end - view.start)) * unit,
            box.top + 34 + placed.top + placed.height * 0.4];
}"""


def test_idle_intervals_are_hovered_clicked_and_zoomed_to(shown):
    page = shown.page
    page.wait_for_function("() => window.stagescopeViewer.idle.value")
    for row, wait, words in [
        (1, "compute", "compute of another rank"),
        (3, "nothing", "the end of the step"),
    ]:
        place, x, y = page.evaluate(IDLE_SPOT, [row, wait])
        page.mouse.move(x, y)
        shown.settle()
        assert f"idle, rank {row}" in page.locator(".readout").inner_text()
        page.mouse.click(x, y)
        page.wait_for_function(
            f"() => window.stagescopeViewer.selection.idleChain.value?.hops[0].place === {place}"
        )
        shown.settle()
        assert words in shown.facts("Selected span")["waiting for"]
        assert "waited" in page.locator(".chain li").first.inner_text()
        hops = shown.of("selection.idleChain.value.hops")
        assert all(hop["span"]["row"] != row for hop in hops[:1])
        ends = [hop["span"]["start"] for hop in hops]
        assert ends == sorted(ends, reverse=True)  # back in time
        assert shown.of("selection.chain.value.links.length") == len(hops)
    page.mouse.dblclick(x, y)
    shown.settle()
    idle = f"idle.value.duration[{place}]"
    assert shown.of("camera.view.value.end") - shown.of("camera.view.value.start") < 6 * shown.of(idle)


def test_slow_step_is_marked_and_its_finding_leads_to_it(open_page, make_page):
    timeline = slowed_step(pipeline_timeline(Shape(ranks=2, microbatches=3, steps=12)), 7)
    shown = open_page(make_page("slow step", timeline))
    steps = shown.of("meta.steps")
    assert [step["step"] for step in steps if step["excess_ns"] is not None] == [7]
    report = build_report(timeline)
    assert [step["window_ns"] for step in steps] == report.steps["window_ns"].to_list()
    bars = shown.page.locator(".step-canvas canvas")
    bars.hover(position={"x": bars.bounding_box()["width"] * 7.5 / 12, "y": 30})
    caption = shown.page.locator(".step-caption")
    assert caption.inner_text().startswith("step 7: ")
    assert "longer than usual" in caption.inner_text()
    shown.page.get_by_role("button", name="Step 7 took").click()
    shown.settle()
    assert shown.of("camera.step.value.step") == 7


def test_in_a_notebook_the_wheel_scrolls_and_ctrl_zooms(pool, run_page):
    shown = pool.take({"viewport": {"width": 900, "height": 500}, "reduced_motion": "reduce"})
    page = html.escape(run_page.read_text(encoding="utf-8"))
    frame = f'<iframe sandbox="allow-scripts" style="width:100%;height:640px" srcdoc="{page}"></iframe>'
    shown.page.set_content(f"<body>{frame}<p style='height:3000px'>further cells</p></body>")
    inner = shown.page.frames[1]
    inner.wait_for_function("() => window.stagescopeViewer && document.querySelector('.canvas-box canvas')")
    view = "() => window.stagescopeViewer.camera.view.value.end - window.stagescopeViewer.camera.view.value.start"
    inner.wait_for_timeout(200)
    before = inner.evaluate(view)
    inner.locator(".canvas-box canvas").hover(position={"x": 200, "y": 150})
    shown.page.mouse.wheel(0, 120)
    shown.page.wait_for_function("() => window.scrollY > 0")
    assert inner.evaluate(view) == before
    assert "Ctrl + wheel zooms" in inner.locator(".toast").inner_text()
    shown.page.evaluate("() => window.scrollTo(0, 0)")
    inner.locator(".canvas-box canvas").hover(position={"x": 200, "y": 150})
    shown.page.keyboard.down("Control")
    shown.page.mouse.wheel(0, -120)
    shown.page.keyboard.up("Control")
    inner.wait_for_function(f"(before) => ({view})() < before", arg=before)
    assert shown.page.evaluate("() => window.scrollY") == 0
    pool.give_back(shown)


def test_the_selected_span_is_announced_with_its_duration(shown):
    shown.page.evaluate(f"() => window.stagescopeViewer.select({shown.id('backward', 1, 4)})")
    shown.settle()
    status = shown.page.locator(".sr-only[role=status]").inner_text()
    assert "micro-batch 4" in status
    assert status.endswith("2.000 ms")
