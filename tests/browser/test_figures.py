"""The figures of the viewer are those of Python, and its details those of the table."""

from dataclasses import replace

import polars as pl
import pytest

from stagescope.analysis import build_explained_report
from stagescope.model.tables import COUNTERS
from stagescope.model.validate import conform
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.run_data import shown_ranks
from stagescope.viewer.span_data import viewer_spans
from stagescope.vocabulary.kinds import KINDS

pytestmark = pytest.mark.slow

NAMES = {kind.code: kind.name for kind in KINDS}


@pytest.fixture(scope="module")
def table(run):
    """The spans by id."""
    return viewer_spans(run.spans, shown_ranks(run)).with_row_index("id")


def inside(frame, start, end, first="start_ns", last="end_ns"):
    """Return the parts of intervals that lie in [start, end); empty ones count if they start inside."""
    reaching = frame.filter((pl.col(first) < end) & (pl.col(last) > start))
    cut = reaching.with_columns(left=pl.col(first).clip(start), right=pl.col(last).clip(upper_bound=end))
    return cut.with_columns(long=pl.col("right") - pl.col("left"))


def union_ns(parts):
    """Return the length of the union of intervals, row by row."""
    total = 0
    for rows in parts.partition_by("rank"):
        until = None
        for left, right in rows.sort("left").select("left", "right").iter_rows():
            total += max(0, right - max(left, until if until is not None else left))
            until = right if until is None else max(until, right)
    return total


def test_the_first_panel_is_the_verdict_of_the_report(shown, run):
    verdict = build_explained_report(run).verdict
    first = shown.page.locator("details.section").first
    first.locator(".verdict").wait_for()
    assert first.locator("h2").inner_text() == "Why"
    assert first.locator(".verdict > p").all_inner_texts() == [verdict.why, verdict.improvement]
    assert first.locator(".tested p").text_content() == verdict.tested
    assert first.locator("li").all_inner_texts() == list(verdict.findings)
    assert shown.page.locator("h1").inner_text() == shown.of("meta.title")


@pytest.mark.parametrize("rows", [[1, 2], [0, 1, 2, 3]])
def test_figures_of_a_selection_equal_those_of_the_spans_table(shown, run, rows):
    base_ns = run.spans["start_ns"].min()
    start, end = 47_000_123, 71_000_777
    shown.page.evaluate(
        f"() => window.stagescopeViewer.selection.setRange({{start: {start}, end: {end}, rows: {rows}}})"
    )
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.statistics.value")
    got = shown.of("selection.statistics.value")
    spans = run.spans.filter(pl.col("rank").is_in(rows))
    parts = inside(spans, base_ns + start, base_ns + end)
    by_kind = parts.group_by("kind").agg(pl.len(), pl.sum("long"))
    assert {NAMES[one["kind"]]: (one["count"], one["sum_ns"]) for one in got["kinds"]} == {
        kind: (count, long) for kind, count, long in by_kind.iter_rows()
    }
    assert (got["span_count"], got["sum_ns"]) == (parts.height, parts["long"].sum())
    assert got["busy_ns"] == union_ns(parts.filter(pl.col("lane") == "compute"))
    assert got["idle_ns"] == len(rows) * (end - start) - got["busy_ns"]
    waits = inside(
        spans.drop_nulls("wait_start_ns"), base_ns + start, base_ns + end, "wait_start_ns", "wait_end_ns"
    )
    assert got["wait_ns"] == union_ns(waits)
    idle = inside(gather_extras(run).idle.filter(pl.col("rank").is_in(rows)), base_ns + start, base_ns + end)
    causes = idle.group_by("waiting_for").agg(pl.sum("long"))
    assert {one["waiting_for"]: one["sum_ns"] for one in got["waits"]} == dict(causes.iter_rows())


def test_the_panel_shows_the_figures_of_the_selection(shown):
    shown.page.evaluate(
        "() => window.stagescopeViewer.selection.setRange({start: 45e6, end: 65e6, rows: [0]})"
    )
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.statistics.value")
    shown.settle()
    facts, figures = shown.facts("Selection"), shown.of("selection.statistics.value")
    assert facts["length"] == "20.00 ms on 1 row"
    assert facts["spans"] == str(figures["span_count"])
    assert facts["busy"] == f"{figures['busy_ns'] / 1e6:.2f} ms"[:8]
    share = figures["idle_ns"] / 20e6
    assert f"({100 * share:.1f} % of rows" in facts["bubble"]
    rows = shown.page.locator(".figures tbody tr").all_inner_texts()
    assert any(row.startswith("forward\t") for row in rows)


def test_details_equal_the_row_of_the_table(shown, run, table):
    base_ns = run.spans["start_ns"].min()
    for kind, stage, microbatch in [("forward", 0, 0), ("backward", 3, 7), ("backward", 1, 4)]:
        action = shown.id(kind, stage, microbatch)
        shown.click(action)
        row = table.row(action, named=True)
        source = run.spans.row(row["source_row"], named=True)
        facts = shown.facts("Selected span")
        assert facts["kind"].startswith(kind)
        for name, column in [
            ("rank", "rank"),
            ("stage", "stage"),
            ("micro-batch", "microbatch"),
            ("step", "step"),
        ]:
            assert facts[name] == str(source[column])
        assert facts["start on the clock"] == f"{source['start_ns']} ns"
        assert f"({source['end_ns'] - source['start_ns']:,} ns)" in facts["duration"]
        machine = f"node-{source['rank'] // 2}"
        assert facts["machine"] == machine
        assert ("200.0 µs to +150.0 µs" in facts["clock error"]) is (machine == "node-1")
        assert source["start_ns"] - base_ns == shown.of("selection.selected.value.start")


def test_details_link_to_the_span_that_was_waited_for(shown, run):
    action = shown.id("backward", 0, 0)
    shown.click(action)
    idle = gather_extras(run).idle
    start_ns = run.spans["start_ns"].min() + shown.of("selection.selected.value.start")
    last = idle.filter((pl.col("rank") == 0) & (pl.col("end_ns") == start_ns)).row(0, named=True)
    waits = shown.page.locator("dl.facts > div", has=shown.page.locator("dt", has_text="waited for"))
    assert last["waiting_for"] in waits.first.inner_text()
    link = waits.locator("button.link", has_text="backward, stage 1, micro-batch 0, rank 1").first
    link.click()
    shown.page.wait_for_function(f"() => {shown.js_selected()} === {shown.id('backward', 1, 0)}")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "stage:3 mb:7 kind:B dur>1ms",
            (pl.col("stage") == 3) & (pl.col("microbatch") == 7) & (pl.col("kind") == 2),
        ),
        ("kind:F,B step:0-1 rank:2", (pl.col("kind") <= 2) & (pl.col("step") <= 1) & (pl.col("row") == 2)),
        ("F0.3", (pl.col("kind") == 1) & (pl.col("stage") == 0) & (pl.col("microbatch") == 3)),
        ("wait>=300us", pl.col("wait_duration") >= 300_000),
        ("machine:node-1 kind:forward", (pl.col("row") >= 2) & (pl.col("kind") == 1)),
        ("lane:comm peer:1", (pl.col("lane") == 1) & (pl.col("peer") == 1)),
    ],
)
def test_a_search_finds_what_a_filter_of_the_table_finds(shown, table, query, expected):
    box = shown.page.get_by_role("searchbox", name="Search")
    box.fill(query)
    shown.settle()
    matches = table.filter(expected).sort("start", "id")
    assert matches.height > 0
    assert shown.of("search.found.value.count") == matches.height
    box.press("Enter")
    ids = [
        shown.page.evaluate(f"() => window.stagescopeViewer.search.found.value.at({i}).id")
        for i in range(matches.height)
    ]
    assert ids == matches["id"].to_list()


def test_next_and_previous_go_through_the_matches_and_around(shown):
    page = shown.page
    page.get_by_role("searchbox", name="Search").fill("stage:2 mb:4 kind:F,B")
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.stagescopeViewer.search.foundAt.value >= 0")
    order = [shown.of("search.foundAt.value")]
    assert page.locator(".count").inner_text() == f"{order[0] + 1} of 6"
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Escape")
    shown.settle()
    assert shown.of("search.foundAt.value") == (order[0] - 1) % 6
    for key, step in [("n", 1), ("n", 1), ("Shift+N", -1)]:
        before = shown.of("search.foundAt.value")
        shown.press(key)
        assert shown.of("search.foundAt.value") == (before + step) % 6
        view, span = shown.of("camera.view.value"), shown.of("selection.selected.value")
        assert view["start"] <= span["start"] <= span["start"] + span["duration"] <= view["end"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("stag:3", 'Unknown field "stag"'),
        ("kind:Z", 'Unknown kind "Z"'),
        ("dur>fast", "is not a duration"),
    ],
)
def test_invalid_query_shows_its_problem(shown, query, words):
    shown.page.get_by_role("searchbox", name="Search").fill(query)
    shown.settle()
    assert words in shown.page.get_by_role("alert").inner_text()


def test_the_table_lists_the_spans_in_view_and_selects_them(shown, table):
    shown.press("t")
    view = shown.of("camera.view.value")
    seen = table.filter(
        (pl.col("lane") == 0)
        & (pl.col("start") - table["start"].min() < view["end"])
        & (pl.col("start") - table["start"].min() + pl.col("duration") > view["start"])
    )
    rows = shown.page.locator(".visible-table tbody tr")
    assert rows.count() == seen.height
    assert shown.page.locator(".visible-table caption").inner_text() == f"{seen.height} spans in view"
    rows.nth(3).click()
    shown.page.wait_for_function(f"() => {shown.js_selected()} === {seen['id'][3]}")


def test_the_table_is_sorted_filtered_and_copied_with_exact_times(shown, table):
    page = shown.page
    page.wait_for_function("() => window.stagescopeViewer.idle.value")
    shown.press("t")
    page.get_by_role("button", name="duration (ns)").click()
    durations = page.locator(".visible-table tbody tr td:nth-child(8)").all_inner_texts()
    exact = [int(text.replace(",", "")) for text in durations]
    assert exact == sorted(exact, reverse=True)
    assert set(exact) <= set(table["duration"].to_list())
    page.get_by_placeholder("Filter rows").fill("backward")
    shown.settle()
    kinds = set(page.locator(".visible-table tbody tr td:nth-child(2)").all_inner_texts())
    assert kinds == {"backward"}
    shown_ns = page.locator(".visible-table tbody tr td:nth-child(8)").all_inner_texts()
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_function("() => window.copied")
    lines = page.evaluate("() => window.copied").splitlines()
    assert lines[0].split("\t")[6:8] == ["start (ns)", "duration (ns)"]
    copied = [int(line.split("\t")[7]) for line in lines[1:]]
    assert copied == [int(text.replace(",", "")) for text in shown_ns]
    codes = [code for code, name in NAMES.items() if name == "backward"]
    backwards_ns = table.filter(pl.col("kind").is_in(codes))["duration"]
    assert copied == sorted(backwards_ns, reverse=True)[: len(copied)]
    assert copied


def test_the_longest_idle_intervals_and_the_furthest_from_the_ideal_are_listed_as_links(shown, run):
    page = shown.page
    page.wait_for_function("() => window.stagescopeViewer.idle.value")
    shown.press("t")
    page.get_by_role("button", name="Longest idle intervals").click()
    longest = page.locator(".visible-table tbody tr td:last-child").all_inner_texts()
    idle = gather_extras(run).idle
    expected = (idle["end_ns"] - idle["start_ns"]).sort(descending=True).to_list()
    assert [int(text.replace(",", "")) for text in longest] == expected[:1000]
    page.locator(".visible-table tbody tr").first.click()
    page.wait_for_function("() => window.stagescopeViewer.selection.idleChain.value")
    assert shown.of("selection.idle.value") is not None
    page.get_by_role("button", name="Furthest from the ideal schedule").click()
    later = [
        int(text.replace(",", ""))
        for text in page.locator(".visible-table tbody tr td:last-child").all_inner_texts()
    ]
    assert [abs(each) for each in later] == sorted(map(abs, later), reverse=True)
    assert len(later) == run.spans.filter(pl.col("kind").is_in(["forward", "backward"])).height


def test_the_matrix_of_transfers_is_that_of_the_report(shown, run):
    transfers = build_explained_report(run).transfers
    shown.page.locator("summary", has_text="Transfers between ranks").click()
    panel = shown.page.locator("details.section", has_text="Transfers between ranks")
    canvas = panel.locator("canvas")
    canvas.scroll_into_view_if_needed()
    side = canvas.bounding_box()["width"] / 4
    sent = {
        (source, target): count
        for source, target, count in transfers.select("source", "target", "messages").rows()
    }
    for source, target in ((0, 1), (2, 1), (3, 0)):
        canvas.hover(position={"x": (target + 0.5) * side, "y": (source + 0.5) * side})
        shown_count = f"{sent[source, target]}" if (source, target) in sent else "nothing"
        panel.get_by_text(f"rank {source} to rank {target}: {shown_count}", exact=True).wait_for()
    panel.get_by_role("button", name="bytes", exact=True).click()
    rows = panel.locator("tbody tr").all_inner_texts()
    assert len(rows) == min(transfers.height, 8)
    largest = transfers.sort(
        "bytes", "source", "target", descending=[True, False, False], nulls_last=True
    ).row(0)
    assert rows[0].split("\t")[:2] == [f"{largest[0]} → {largest[1]}", str(largest[2])]


def test_counters_are_drawn_over_time(open_page, make_page, run):
    base_ns, end_ns = run.spans["start_ns"].min(), run.spans["end_ns"].max()
    times = range(base_ns, end_ns, (end_ns - base_ns) // 100)
    rows = [
        (rank, name, time, value(rank, i), unit)
        for name, unit, value in (
            ("allocated memory", "B", lambda rank, i: (10 + rank + i % 7) * 2.0**30),
            ("GPU clock", "MHz", lambda rank, i: 1980.0 - 30 * rank - (i > 50) * 200),
        )
        for rank in (0, 1, 2, 3)
        for i, time in enumerate(times)
    ]
    table = pl.DataFrame(rows, schema=["rank", "name", "time_ns", "value", "unit"], orient="row")
    shown = open_page(make_page("counters", replace(run, counters=conform(table, COUNTERS))))
    shown.page.locator("summary", has_text="Memory and other counters").click()
    panel = shown.page.locator(".counters")
    panel.get_by_text("rank 3: at most 19.0 GiB; all ranks: 10.0 GiB to 19.0 GiB (band)").wait_for()
    shown.page.evaluate(f"() => window.stagescopeViewer.select({shown.id('forward', 1, 2)})")
    panel.get_by_text("rank 1: at most 17.0 GiB; all ranks: 10.0 GiB to 19.0 GiB (band)").wait_for()
    panel.get_by_label("Counter").select_option("GPU clock")
    panel.get_by_text("rank 1: at most 1950 MHz; all ranks: 1690 MHz to 1980 MHz (band)").wait_for()
    chart = panel.locator("svg")
    box = chart.bounding_box()
    chart.click(position={"x": 0.9 * box["width"], "y": 20})
    shown.settle()
    view = shown.of("camera.view.value")
    middle = (view["start"] + view["end"]) / 2
    assert middle == pytest.approx(0.9 * (end_ns - base_ns), rel=0.05)
