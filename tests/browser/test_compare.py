"""Two runs side by side in the page, in a real browser."""

from dataclasses import replace

import polars as pl
import pytest

from stagescope.api import compare, export_comparison
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.reports.comparison_sentences import comparison_sentences
from synthetic import Shape, pipeline_timeline, slowed_step

pytestmark = pytest.mark.slow

SLOWER, FASTER, UNCHANGED, BACKWARD = (156, 61, 0), (143, 211, 251), (166, 171, 178), (0, 158, 115)
HOSTILE = "</script><img src=x onerror=\"window.hacked=1\"><svg onload='window.hacked=1'>"


@pytest.fixture(scope="module")
def faster(run):
    """The same run with backward actions of stage 1 half as long."""
    is_changed = (pl.col("kind") == "backward") & (pl.col("stage") == 1)
    half = (pl.col("start_ns") + pl.col("end_ns")) // 2
    return run.with_spans(run.spans.with_columns(end_ns=pl.when(is_changed).then(half).otherwise("end_ns")))


@pytest.fixture(scope="module")
def faster_page(make_page, faster):
    return make_page("faster", faster)


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory):
    """Return a function that writes what `stagescope compare BEFORE AFTER --html` writes."""
    folder = tmp_path_factory.mktemp("pairs")

    def make(name, before, after):
        return export_comparison(compare(before, after), before, after, folder / f"{name}.html").path

    return make


@pytest.fixture(scope="module")
def pair_page(make_pair, run, faster):
    """The page of a comparison in which the faster run came first."""
    return make_pair("slower", faster, run)


def open_other(shown, path):
    shown.page.locator("input[type=file]").set_input_files(path)
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value")
    shown.settle()


def color_of(shown, kind, stage, part=0.2):
    """Return which color micro-batch 4 has at a fraction of its row's height: 0.2 is this run, 0.85 the other one."""
    at = shown.spot(shown.id(kind, stage, 4))
    height = shown.of("display.rows.value.placed[0].height")
    found = shown.page.evaluate(
        """([x, y]) => { const c = document.querySelector('.canvas-box canvas'), box = c.getBoundingClientRect();
        return [...c.getContext('2d').getImageData(x - box.left, y - box.top, 1, 1).data].slice(0, 3); }""",
        [at["left"] + 4, at["y"] + (part - 0.4) * height],
    )
    return min((SLOWER, FASTER, UNCHANGED, BACKWARD), key=lambda color: distance(color, found))


def distance(color, other):
    """The texture of the kind lies over the color, so that a pixel can be lighter or darker."""
    return sum((one - another) ** 2 for one, another in zip(color, other, strict=True))


def luminance(color):
    return sum(part * weight for part, weight in zip(color, (0.2126, 0.7152, 0.0722), strict=True))


def test_faster_and_slower_differ_without_color():
    assert luminance(FASTER) - luminance(UNCHANGED) > 25
    assert luminance(UNCHANGED) - luminance(SLOWER) > 60


def test_actions_that_took_longer_are_dark_and_others_gray(shown, run, faster_page):
    open_other(shown, faster_page)
    comparison = shown.of("comparison.value.matched")
    actions = run.spans.filter(pl.col("kind").is_in(["forward", "backward"])).height
    assert (comparison, shown.of("comparison.value.unmatched")) == (actions, 0)
    for kind, stage, color in [
        ("backward", 1, SLOWER),
        ("forward", 1, UNCHANGED),
        ("backward", 2, UNCHANGED),
    ]:
        assert color_of(shown, kind, stage) == color, (kind, stage)
    page = shown.page
    page.locator("summary", has_text="Compare").click()
    facts = shown.facts("Compare")
    assert facts["actions matched"] == str(actions)
    page.get_by_role("button", name="End the comparison").click()
    assert shown.of("comparison.value") is None


def test_a_file_that_is_no_run_is_refused_in_words(open_page, run_page, tmp_path):
    shown = open_page(run_page)
    other = tmp_path / "other.html"
    other.write_text("<p>no run</p>", encoding="utf-8")
    shown.page.locator("input[type=file]").set_input_files(other)
    words = shown.page.locator(".warning [role=alert]")
    words.wait_for()
    assert words.inner_text().startswith("This run cannot be compared.")
    assert shown.of("comparison.value") is None


def words_of(shown):
    return shown.page.locator(
        "details.section", has=shown.page.locator("h2", has_text="What changed")
    ).inner_text()


def test_page_of_two_runs_opens_with_the_comparison_and_its_sentences(open_page, pair_page, run, faster):
    shown = open_page(pair_page)
    actions = run.spans.filter(pl.col("kind").is_in(["forward", "backward"])).height
    assert (shown.of("comparison.value.matched"), shown.of("comparison.value.unmatched")) == (actions, 0)
    assert (color_of(shown, "backward", 1), color_of(shown, "backward", 2)) == (SLOWER, UNCHANGED)
    assert (
        color_of(shown, "backward", 1, part=0.85) == BACKWARD
    )  # below lies the run before, in its usual colors
    first = shown.page.locator(".side h2").first
    assert first.inner_text() == "What changed"
    compared = compare(faster, run)
    assert words_of(shown).startswith("What changed")
    for sentence in comparison_sentences(compared):
        assert sentence in words_of(shown)
    assert shown.facts("Compare")["actions matched"] == str(actions)
    assert shown.page.locator(".legend").inner_text().count("25 % slower") == 1


def test_what_got_faster_from_the_first_run_to_the_second_is_light(open_page, make_pair, run, faster):
    shown = open_page(make_pair("faster", run, faster))
    assert color_of(shown, "backward", 1) == FASTER


def test_a_link_keeps_whether_the_comparison_is_on(open_page, pair_page):
    shown = open_page(pair_page)
    assert "compare" not in shown.page.url
    shown.press("w")
    shown.page.get_by_role("button", name="End the comparison").click()
    shown.page.wait_for_function("() => location.hash.includes('compare=off')")
    shown.settle()
    assert shown.page.get_by_text("What changed").count() == 0
    again = open_page(pair_page, shown.page.url.split("#", 1)[1])
    assert again.of("comparison.value") is None
    assert color_of(again, "backward", 1) != SLOWER
    assert again.of("camera.view.value.start") == pytest.approx(shown.of("camera.view.value.start"), abs=1)
    again.page.get_by_role("button", name="Show the comparison again").click()
    again.page.wait_for_function(
        "() => window.stagescopeViewer.comparison.value && !location.hash.includes('compare')"
    )
    again.settle()
    assert color_of(again, "backward", 1) == SLOWER
    third = open_page(pair_page, again.page.url.split("#", 1)[1])
    assert color_of(third, "backward", 1) == SLOWER


def test_another_run_can_be_opened_in_a_page_of_two_runs(open_page, pair_page, run_page):
    shown = open_page(pair_page)
    shown.page.locator("input[type=file]").set_input_files(run_page)
    shown.page.wait_for_function("() => !window.stagescopeViewer.isOtherShown.value")
    shown.settle()
    assert color_of(shown, "backward", 1) == UNCHANGED  # the same run
    assert shown.page.get_by_text("What changed").count() == 0


def test_hostile_names_of_both_runs_stay_text(open_page, make_pair, run, faster):
    def hostile(timeline, schedule):
        named = timeline.with_spans(timeline.spans.with_columns(name=pl.lit(HOSTILE)))
        return replace(
            named, ranks=named.ranks.with_columns(machine=pl.lit(HOSTILE), schedule=pl.lit(schedule))
        )

    shown = open_page(make_pair("hostile", hostile(faster, HOSTILE), hostile(run, "1f1b")))
    assert shown.page.evaluate("() => window.hacked") is None
    assert shown.page.locator("img, iframe, object, embed, svg[onload]").count() == 0
    assert f"The declared schedule changed from {HOSTILE} to 1f1b." in words_of(shown)
    assert shown.facts("Compare")["other run"].startswith(HOSTILE[:40])
    assert color_of(shown, "backward", 1) == SLOWER


def test_page_with_truncated_second_run_shows_the_first_and_an_error(open_page, pair_page, tmp_path):
    text = pair_page.read_text(encoding="utf-8")
    cut = tmp_path / "cut.html"
    cut.write_text(text[: text.index('id="stagescope-other-spans"') + 400], encoding="utf-8")
    shown = open_page(cut)
    words = shown.page.locator(".warning [role=alert]").inner_text()
    assert words.startswith(
        'These runs cannot be compared. This file is cut off: its block "other-spans" has '
    )
    assert (shown.of("comparison.value"), shown.of("meta.steps.length")) == (None, 3)


def test_missing_data_of_the_second_run_is_reported(open_page, make_pair, run, faster):
    lost = Diagnostic("error", "the recording ends early", rank=2, code="test.finding")
    shown = open_page(make_pair("lost", replace(faster, diagnostics=diagnostics_table([lost])), run))
    words = shown.page.locator(".warning").inner_text()
    assert words == "Data of the other run are missing. rank 2: the recording ends early"


def test_runs_without_common_actions_are_reported(open_page, make_pair, run):
    other = run.with_spans(
        run.spans.filter(pl.col("kind") == "optimizer").with_columns(step=pl.lit(None, pl.Int32))
    )
    shown = open_page(make_pair("nothing", other, run))
    assert "The runs have nothing in common that could be compared." in words_of(shown)
    assert shown.facts("Compare")["actions matched"] == "0"


def test_axe_finds_no_serious_barrier_in_a_page_of_two_runs(open_page, pair_page, axe):
    shown = open_page(pair_page)
    shown.page.evaluate(axe)
    found = shown.page.evaluate("async () => (await axe.run()).violations")
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


def compare_with_step(shown, step):
    section = shown.page.locator("details.section", has=shown.page.locator("h2", has_text="Compare"))
    if section.get_attribute("open") is None:
        section.locator("summary").click()
    section.get_by_role("spinbutton").fill(str(step))
    section.get_by_role("button", name="Compare", exact=True).click()
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value")
    shown.settle()


@pytest.fixture(scope="module")
def slow_backwards(run):
    """The run with backward actions of stage 1 half as long in step 0."""
    is_changed = (pl.col("kind") == "backward") & (pl.col("stage") == 1) & (pl.col("step") == 0)
    half = (pl.col("start_ns") + pl.col("end_ns")) // 2
    return run.with_spans(run.spans.with_columns(end_ns=pl.when(is_changed).then(half).otherwise("end_ns")))


def test_two_steps_of_a_run_are_compared_and_a_link_restores_it(open_page, make_page, slow_backwards):
    page = make_page("slow backwards", slow_backwards)
    shown = open_page(page)
    compare_with_step(shown, 0)
    in_step = slow_backwards.spans.filter(pl.col("kind").is_in(["forward", "backward"]), pl.col("step") == 1)
    assert (shown.of("comparison.value.matched"), shown.of("comparison.value.unmatched")) == (
        in_step.height,
        0,
    )
    assert (color_of(shown, "backward", 1), color_of(shown, "backward", 2)) == (SLOWER, UNCHANGED)
    assert "than in step 0 (lower half)" in shown.page.locator(".legend").inner_text()
    shown.page.wait_for_function("() => location.hash.includes('steps=1-0')")
    again = open_page(page, shown.page.url.split("#", 1)[1])
    assert again.of("comparison.value.steps") == [1, 0]
    assert color_of(again, "backward", 1) == SLOWER


def test_runs_with_other_stages_are_not_colored(open_page, run_page, make_page):
    other = make_page("eight stages", pipeline_timeline(Shape(ranks=8, microbatches=8, steps=3)))
    shown = open_page(run_page)
    open_other(shown, other)
    assert shown.of("comparison.value.stages") == [4, 8]
    assert "this run has 4 stages, the other one 8" in shown.page.locator(".legend").inner_text()
    assert color_of(shown, "backward", 1) == BACKWARD


def test_steps_of_the_other_run_do_not_overprint_the_next_step(open_page, make_pair, run):
    spans = run.spans.with_columns(
        end_ns=pl.when(pl.col("kind") == "backward")
        .then(2 * pl.col("end_ns") - pl.col("start_ns"))
        .otherwise("end_ns")
    )
    shown = open_page(make_pair("longer", run.with_spans(slowed_step(run, 0).spans), run.with_spans(spans)))
    assert shown.of("comparison.value.cut") > 0
    ends = shown.page.evaluate(
        """() => { const v = window.stagescopeViewer, { spans } = v.comparison.value, steps = spans.table.ints('step');
        return Math.max(...Array.from({ length: spans.count }, (_, i) => steps[i] === 0 ? spans.end(i) : 0)); }"""
    )
    assert ends <= shown.of("meta.steps[1].start")
