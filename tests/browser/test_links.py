"""Arrows reach the blocks that need each other, and a link brings back the whole picture."""

import json
from dataclasses import replace

import polars as pl
import pytest

from pictures import difference_fraction
from stagescope.viewer.analysis_data import gather_extras

pytestmark = pytest.mark.slow

DRAWN = """() => {
    const canvas = document.querySelector('.canvas-box canvas');
    const pen = canvas.getContext('2d'), pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
    let sum = 0;
    for (let i = 0; i < pixels.length; i++) sum = (sum * 31 + pixels[i]) >>> 0;
    return sum;
}"""
INK = """([x, y]) => {
    const canvas = document.querySelector('.canvas-box canvas'), box = canvas.getBoundingClientRect();
    const pixels = canvas.getContext('2d').getImageData(x - box.left - 3, y - box.top - 3, 7, 7).data;
    let dark = 0;
    for (let i = 0; i < pixels.length; i += 4) if (pixels[i] < 70 && pixels[i + 1] < 70 && pixels[i + 2] < 70) dark++;
    return dark;
}"""
PHASES = {"forward": "F", "backward": "B"}


def links(shown, which):
    """Return links as ((kind, stage), (kind, stage)) from the giving to the needing action."""
    found = shown.of(f"{which}.value")
    names = {kind["code"]: PHASES.get(kind["name"], kind["name"]) for kind in shown.of("meta.kinds")}
    actions = {span["id"]: (names[span["kind"]], span["stage"]) for span in found["spans"]}
    return {(actions[one], actions[other]) for one, other in found["links"]}


def test_hovering_draws_one_hop_to_the_actions_that_need_each_other(shown):
    at = shown.spot(shown.id("backward", 2, 3))
    shown.page.mouse.move(at["x"], at["y"])
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.hoverLinks.value")
    shown.settle()
    assert links(shown, "selection.hoverLinks") == {(("B", 3), ("B", 2)), (("B", 2), ("B", 1))}
    for action, edge in [(shown.id("backward", 1, 3), "left"), (shown.id("backward", 2, 3), "left")]:
        place = shown.spot(action)
        head = shown.page.evaluate(INK, [place[edge] - 3, _edge(shown, action, is_top=False)])
        assert head > 3
        # Labels are in the middle; 6 pixels away there is no frame of the hovered block.
        assert shown.page.evaluate(INK, [place[edge] - 6, _edge(shown, action, is_top=None)]) == 0


def _edge(shown, action, *, is_top):
    """Return the height at which an arrow meets a block: the edge of its row; of its middle if `is_top` is None."""
    row = shown.of(f"source.spans.row[{action}]")
    box = shown.page.evaluate(
        """(row) => {
            const v = window.stagescopeViewer, placed = v.display.rows.value.placed.find((one) => one.row === row);
            const box = document.querySelector('.canvas-box canvas').getBoundingClientRect();
            return [box.top + 34 + placed.top, placed.height];
        }""",
        row,
    )
    return box[0] + (box[1] / 2 if is_top is None else 4.5 if is_top else box[1] - 4.5)


def test_a_click_draws_the_whole_way_of_the_micro_batch(shown):
    shown.click(shown.id("forward", 1, 4))
    forward = {(("F", stage), ("F", stage + 1)) for stage in range(3)}
    backward = {(("B", stage + 1), ("B", stage)) for stage in range(3)}
    assert links(shown, "selection.chain") == forward | {(("F", 3), ("B", 3))} | backward


def test_arrows_survive_pinning_and_end_with_hiding(shown):
    shown.click(shown.id("forward", 1, 4))
    shown.press("p")
    assert len(links(shown, "selection.chain")) == 7
    action = shown.id("forward", 2, 4)
    assert shown.page.evaluate(INK, [shown.spot(action)["left"] - 3, _edge(shown, action, is_top=True)]) > 3
    shown.press("r")
    assert shown.page.evaluate(INK, [shown.spot(action)["left"] - 3, _edge(shown, action, is_top=True)]) <= 3


def test_a_link_restores_all_that_is_on_the_screen(open_page, run_page):
    shown = open_page(run_page)
    shown.press("w")
    shown.press("d")
    shown.press("Shift+G")
    shown.press("i")
    shown.press("c")
    shown.press("e")
    shown.click(shown.id("backward", 1, 4))
    shown.press("m")
    shown.page.get_by_role("searchbox", name="Search").fill("kind:B")
    shown.page.get_by_role("button", name="Side panel").click()
    shown.page.wait_for_function("() => location.hash.includes('panel=none')")
    shown.settle()
    again = open_page(run_page, shown.page.url.split("#", 1)[1])
    for state in (
        "display.rowChoice.value", "display.ideal.value", "display.panel.value", "search.query.value",
        "search.found.value.count", "selection.range.value", "selection.selected.value",
        "selection.statistics.value", "selection.chain.value",
    ):  # fmt: skip
        assert again.of(state) == shown.of(state), state
    assert again.of("camera.view.value") == pytest.approx(
        shown.of("camera.view.value"), abs=1
    )  # a link has whole nanoseconds
    flags = "() => [...window.stagescopeViewer.display.flags.value].sort()"
    assert again.page.evaluate(flags) == shown.page.evaluate(flags)
    for opened in (shown, again):
        opened.page.mouse.move(2, 2)
        opened.page.wait_for_selector(
            ".toast", state="detached"
        )  # the last key press is reported for a while
        opened.settle()
    assert difference_fraction(shown.page, shown.page.screenshot(), again.page.screenshot()) < 1e-3


def test_a_link_restores_rows_causes_kinds_theme_and_height(open_page, run_page):
    shown = open_page(
        run_page, "pin=3&hide=0&sort=machine&without=forward&idle=exposed_communication&theme=dark&pitch=90&y=40",
        viewport={"width": 1000, "height": 420},
    )  # fmt: skip
    choice = shown.of("display.rowChoice.value")
    assert (choice["pinned"], choice["hidden"], choice["sort"]) == ([3], [0], "machine")
    assert shown.of("display.causeFilter.value") == "exposed_communication"
    assert (
        shown.of("display.hiddenKinds.value.size"),
        shown.of("display.theme.value"),
        shown.of("display.pitch.value"),
    ) == (
        1,
        "dark",
        90,
    )
    assert shown.of("display.scroll.value") == 40


def test_an_address_that_changes_in_the_open_page_is_followed(shown):
    shown.page.evaluate("() => { location.hash = 't=0-1000000&q=F0.0'; }")
    shown.page.wait_for_function("() => window.stagescopeViewer.search.query.value === 'F0.0'")
    assert shown.of("camera.view.value") == {"start": 0, "end": 1_000_000}


def test_a_link_that_is_nonsense_opens_the_run_all_the_same(open_page, run_page):
    shown = open_page(run_page, "t=x&span=99999999&range=5-1&group=zebra&pin=900&y=-3&with=evil&q=kind:")
    assert shown.of("camera.view.value") == shown.of("camera.firstView()")
    assert shown.of("selection.selected.value") is None


def test_the_critical_path_is_the_one_that_python_found(shown, run):
    ids = shown.page.evaluate(
        "async () => [...(await window.stagescopeViewer.source.table('critical_path')).values('span')]"
    )
    rows = gather_extras(run).critical_path["row"]
    expected = run.spans[rows.to_list()].select("rank", "kind", "microbatch", "step").rows()
    found = [
        shown.page.evaluate(
            """(id) => { const v = window.stagescopeViewer, s = v.source.spans.span(id);
            const kind = v.meta.kinds.find((one) => one.code === s.kind).name;
            return [v.meta.ranks.rank[s.row], kind, s.microbatch, s.step]; }""",
            int(id_),
        )
        for id_ in ids
    ]
    assert [tuple(one) for one in found] == expected


def test_the_ideal_is_drawn_where_python_put_it(shown, run):
    starts = shown.page.evaluate(
        """async () => { const t = await window.stagescopeViewer.source.table('ideal');
        const origin = Number(t.facts.origin); return [...t.relative('start')].map((value) => value + origin); }"""
    )
    base_ns = run.spans["start_ns"].min()
    expected = gather_extras(run).ideal.sort("rank", "start_ns")["start_ns"] - base_ns
    assert sorted(starts) == sorted(expected)
    before = shown.page.evaluate(DRAWN)
    for _ in range(2):
        shown.press("i")
        drawn = shown.page.evaluate(DRAWN)
        assert drawn != before
        before = drawn
    assert json.dumps(shown.of("display.ideal.value")) == '"over"'
    assert pl.Series(starts).is_not_nan().all()


def test_a_link_restores_the_selected_idle_interval(open_page, run_page):
    shown = open_page(run_page)
    shown.page.wait_for_function("() => window.stagescopeViewer.idle.value")
    shown.page.evaluate("() => window.stagescopeViewer.selectIdle(7)")
    shown.page.wait_for_function(
        "() => window.stagescopeViewer.selection.idleChain.value && location.hash.includes('interval=7')"
    )
    shown.settle()
    again = open_page(run_page, shown.page.url.split("#", 1)[1])
    again.page.wait_for_function("() => window.stagescopeViewer.selection.idleChain.value")
    assert again.of("selection.idle.value") == 7
    assert again.facts("Selected span") == shown.facts("Selected span")


def test_tab_is_named_like_the_input(open_page, make_page, run):
    named = replace(run, ranks=run.ranks.with_columns(source=pl.lit("runs/seven.pftrace")))
    shown = open_page(make_page("named", named))
    title = shown.page.title()
    assert title == f"seven.pftrace · {shown.of('meta.title')} · runs/seven.pftrace"
