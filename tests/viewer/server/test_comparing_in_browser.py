"""Two runs on the local server, in a real browser: the same as in the page that `stagescope compare --html` writes."""

import json
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pytest

from stagescope.api import compare, export_comparison
from stagescope.api import open as open_viewer
from stagescope.reports.comparison_sentences import comparison_sentences
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.page import write_html
from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

READY = "() => window.stagescopeViewer?.comparison.value && document.querySelector('.canvas-box canvas')"
STATE = """() => {
  const v = window.stagescopeViewer, c = v.comparison.value, { spans } = c;
  const { title, matched, unmatched, own_ns, other_ns, cut, stages, steps, onlyStep, absentRanks } = c;
  const changes = Array.from({ length: v.meta.span_count }, (_, id) => c.delta(id) ?? null);
  const below = [[...spans.row], [...spans.start], [...spans.duration], [...spans.kind]];
  return { title, matched, unmatched, own_ns, other_ns, cut, stages, steps, onlyStep, absentRanks, changes, below };
}"""
PICTURE = "() => document.querySelector('.canvas-box canvas').toDataURL()"


@pytest.fixture(scope="module")
def runs():
    """Return a run, and the same one with backward actions of stage 1 half as long."""
    run = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=5))
    is_changed = (pl.col("kind") == "backward") & (pl.col("stage") == 1)
    half = (pl.col("start_ns") + pl.col("end_ns")) // 2
    faster = run.spans.with_columns(end_ns=pl.when(is_changed).then(half).otherwise("end_ns"))
    return run, run.with_spans(faster)


@dataclass
class Opened:
    """A page of the local server or of a file, and what it complained about."""

    page: Any
    complaints: list[str]

    def state(self):
        self.page.wait_for_function(READY)
        return self.page.evaluate(STATE)

    def picture(self):
        self.page.evaluate("() => window.stagescopeViewer.camera.fitAll()")
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(500)
        return self.page.evaluate(PICTURE)

    def section(self, title):
        """Return a section of the side panel, opened."""
        heading = self.page.get_by_role("heading", name=title, exact=True)
        found = self.page.locator("details.section", has=heading)
        if found.get_attribute("open") is None:
            found.locator("summary").first.click()
        return found


@pytest.fixture
def serve():
    """Return a function that opens a run on the local server, and ends the server afterwards."""
    viewers = []

    def open_(run, **options):
        viewers.append(open_viewer(run, browser=False, **options))
        return viewers[-1].link

    yield open_
    for viewer in viewers:
        viewer.close()


@pytest.fixture
def open_page(browser, serve):
    del serve  # its servers end after the pages are closed
    pages = []

    def open_(address, patch=None):
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        opened = Opened(page, [])
        page.on("console", lambda line: opened.complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        if patch is not None:
            page.route("**/api/meta", lambda route: _patched(route, patch))
        page.goto(address)
        page.wait_for_function(
            "() => window.stagescopeViewer && document.querySelector('.canvas-box canvas')"
        )
        pages.append(opened)
        return opened

    yield open_
    for opened in pages:
        assert opened.complaints == []
        opened.page.context.close()


def _patched(route, patch):
    answer = route.fetch()
    route.fulfill(response=answer, body=json.dumps({**answer.json(), **patch}))


@pytest.fixture
def pair(open_page, serve, runs, tmp_path):
    """Return the run compared with the faster one, on the server and as a page."""
    run, faster = runs
    path = export_comparison(compare(faster, run), faster, run, tmp_path / "pair.html").path
    return open_page(serve(run, compare=faster)), open_page(path.as_uri())


def test_server_and_page_compare_alike(pair, runs):
    ours, theirs = pair
    assert ours.state() == theirs.state()
    actions = runs[0].spans.filter(pl.col("kind").is_in(["forward", "backward"])).height
    assert (ours.state()["matched"], ours.state()["unmatched"]) == (actions, 0)
    for title in ("What changed", "Compare"):
        texts = [each.section(title).inner_text() for each in pair]
        assert texts[0] == texts[1]
    for sentence in comparison_sentences(compare(runs[1], runs[0])):
        assert sentence in ours.section("What changed").inner_text()
    pictures = [each.picture() for each in pair]
    assert len(pictures[0]) > 5000
    assert pictures[0] == pictures[1]


def test_a_comparison_on_the_server_ends_returns_and_is_kept_by_a_link(pair):
    shown, _ = pair
    shown.state()
    shown.section("Compare").get_by_role("button", name="End the comparison").click()
    shown.page.wait_for_function("() => location.hash.includes('compare=off')")
    shown.page.reload()
    shown.page.wait_for_function("() => window.stagescopeViewer?.meta")
    assert shown.page.evaluate("() => window.stagescopeViewer.comparison.value") is None
    shown.section("Compare").get_by_role("button", name="Show the comparison again").click()
    assert shown.state()["unmatched"] == 0


def test_runs_that_are_too_large_as_a_whole_are_compared_step_by_step(open_page, serve, runs):
    run, faster = runs
    shown = open_page(serve(run, compare=faster), patch={"span_count": 2_000_000})
    shown.page.wait_for_function(READY)
    of_step = run.spans.filter(pl.col("kind").is_in(["forward", "backward"]), pl.col("step") == 3)
    shown.page.evaluate("() => window.stagescopeViewer.camera.goToStep(3)")
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value.onlyStep === 3")
    found = shown.page.evaluate(
        """() => { const { matched, unmatched, own_ns, other_ns } = window.stagescopeViewer.comparison.value;
        return [matched, unmatched, own_ns / other_ns]; }"""
    )
    assert found[:2] == [of_step.height, 0]
    durations = of_step.select(pl.col("end_ns") - pl.col("start_ns")).sum().item()
    before = faster.spans.filter(pl.col("kind").is_in(["forward", "backward"]), pl.col("step") == 3)
    assert found[2] == pytest.approx(
        durations / before.select(pl.col("end_ns") - pl.col("start_ns")).sum().item()
    )
    assert "step 3, which is in view, is compared" in shown.section("Compare").inner_text()
    assert "than in step 3 of the other run" in shown.page.locator(".legend").inner_text()


def test_a_step_that_the_other_run_lacks_has_no_match(open_page, serve, runs):
    run, faster = runs
    lacking = faster.with_spans(faster.spans.filter(pl.col("step") < 4))
    shown = open_page(serve(run, compare=lacking), patch={"span_count": 2_000_000})
    shown.page.wait_for_function(READY)
    shown.page.evaluate("() => window.stagescopeViewer.camera.goToStep(4)")
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value.onlyStep === 4")
    of_step = run.spans.filter(pl.col("kind").is_in(["forward", "backward"]), pl.col("step") == 4)
    assert shown.page.evaluate("() => window.stagescopeViewer.comparison.value.unmatched") == of_step.height


COLORS = """() => {
  const canvas = document.querySelector('.canvas-box canvas');
  const pixels = canvas && canvas.getContext('2d').getImageData(0, 40, 900, 300).data.buffer;
  return pixels ? new Set(new Uint32Array(pixels)).size : 0;
}"""


def test_the_picture_is_shown_before_the_runs_are_compared(browser, serve, runs):
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    held = []

    def hold(route):
        held.append(route)

    page.route("**/api/other/meta", hold)
    page.goto(serve(runs[0], compare=runs[1]))
    page.wait_for_function(f"() => ({COLORS})() > 8")
    assert "Comparing with the other run" in page.locator(".legend").inner_text()
    page.wait_for_timeout(100)
    held[0].continue_()
    page.wait_for_function(READY)
    assert "Comparing with" not in page.locator(".legend").inner_text()
    page.context.close()


def test_rows_below_are_those_of_the_same_ranks(open_page, serve, runs):
    """Without rank 0, the other run has rank 1 in its first row: it must not be drawn below rank 0."""
    run, faster = runs
    without = faster.with_spans(faster.spans.filter(pl.col("rank") > 0))
    without = replace(without, ranks=without.ranks.filter(pl.col("rank") > 0))
    shown = open_page(serve(run, compare=without))
    shown.page.wait_for_function(READY)
    rows = shown.page.evaluate(
        "() => [0, 1, 2, 3].map((row) => window.stagescopeViewer.comparison.value.otherRow(row))"
    )
    assert rows == [-1, 0, 1, 2]
    more = open_page(serve(without, compare=faster))
    assert more.state()["absentRanks"] == 1
    assert "1 rank of the other run is not drawn" in more.section("Compare").inner_text()


def test_the_page_of_another_run_can_be_compared_on_the_server(open_page, serve, runs, tmp_path):
    run, faster = runs
    write_html(faster, tmp_path / "faster.html", gather_extras(faster))
    write_html(run, tmp_path / "run.html", gather_extras(run))
    states = []
    for address in (serve(run), (tmp_path / "run.html").as_uri()):
        shown = open_page(address)
        shown.page.locator("input[type=file]").set_input_files(tmp_path / "faster.html")
        states.append(shown.state())
    assert states[0] == states[1]
    assert states[0]["unmatched"] == 0


def test_a_later_version_of_the_run_is_compared_again(open_page, serve, runs, tmp_path):
    run, faster = runs
    after, before = tmp_path / "after.parquet", tmp_path / "before.parquet"
    run.spans.filter(pl.col("step") < 4).write_parquet(after)
    faster.spans.write_parquet(before)
    shown = open_page(serve(after, compare=before))
    first = shown.state()
    run.spans.write_parquet(after)
    shown.page.wait_for_function(
        f"() => window.stagescopeViewer.comparison.value?.matched > {first['matched']}", timeout=60_000
    )
    assert shown.state()["unmatched"] == 0
