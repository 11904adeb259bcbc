"""Two runs side by side in the page, in a real browser."""

import polars as pl
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def faster_page(make_page, run):
    """The same run with backward jobs of stage 1 half as long."""
    is_changed = (pl.col("kind") == "backward") & (pl.col("stage") == 1)
    half = (pl.col("start_ns") + pl.col("end_ns")) // 2
    return make_page(
        "faster",
        run.with_spans(run.spans.with_columns(end_ns=pl.when(is_changed).then(half).otherwise("end_ns"))),
    )


def open_other(shown, path):
    shown.page.locator("input[type=file]").set_input_files(path)
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value")
    shown.settle()


def test_jobs_that_took_longer_are_red_and_others_gray(shown, run, faster_page):
    open_other(shown, faster_page)
    comparison = shown.of("comparison.value.matched")
    jobs = run.spans.filter(pl.col("kind").is_in(["forward", "backward"])).height
    assert (comparison, shown.of("comparison.value.unmatched")) == (jobs, 0)
    for kind, stage, color in [
        ("backward", 1, (213, 94, 0)),
        ("forward", 1, (201, 204, 209)),
        ("backward", 2, (201, 204, 209)),
    ]:
        at = shown.spot(shown.id(kind, stage, 4))
        found = shown.page.evaluate(
            """([x, y]) => { const c = document.querySelector('.canvas-box canvas'), box = c.getBoundingClientRect();
            return [...c.getContext('2d').getImageData(x - box.left, y - box.top, 1, 1).data].slice(0, 3); }""",
            [at["left"] + 4, at["y"] - 12],
        )
        assert tuple(found) == color, (kind, stage)
    page = shown.page
    page.locator("summary", has_text="Compare").click()
    facts = shown.facts("Compare")
    assert facts["jobs matched"] == str(jobs)
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
