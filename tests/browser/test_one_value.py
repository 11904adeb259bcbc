"""Page, terminal, JSON and comparison show one value of each quantity, for five recordings."""

import json
import re
from pathlib import Path

import pytest

from stagescope import analyze, compare, read
from stagescope.api import export, report_json
from stagescope.reports.comparison_table import comparison_tables
from stagescope.reports.tables import step_and_rank_tables
from stagescope.reports.text import report_text
from stagescope.vocabulary.causes import BY_COLUMN
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.ratios import percent_text

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
RUNS = {
    "primus": DATA / "public_runs/primus-pp8.parquet",
    "interleaved": DATA / "public_runs/primus-pp8_vpp2.parquet",
    "bytedance": DATA / "public_runs/bytedance-ST.parquet",
    "megascan": DATA / "public_runs/megascan-pp.parquet",
    "recording": DATA / "recordings/v1",
}
ACCOUNT = """() => [...document.querySelectorAll('.ledger > li')].map((li) =>
    [li.querySelector('.ledger-name').innerText, li.querySelector('.ledger-value').innerText])"""
CAPTIONS = """() => {
    const canvas = document.querySelector('.step-canvas canvas'), found = [];
    if (!canvas) return found;
    const { left, width, top } = canvas.getBoundingClientRect();
    const count = window.stagescopeViewer.meta.steps.length;
    const show = (i) => canvas.dispatchEvent(new MouseEvent('mousemove',
        { bubbles: true, clientX: left + (width * (i + 0.5)) / count, clientY: top + 30 }));
    return (async () => {
        for (let i = 0; i < count; i++) {
            show(i);
            await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
            found.push(document.querySelector('.step-caption').firstChild.textContent);
        }
        return found;
    })();
}"""


@pytest.fixture(scope="module", params=RUNS)
def report(request):
    return analyze(read(RUNS[request.param]))


@pytest.fixture
def shown(report, open_page, tmp_path):
    path = tmp_path / "run.html"
    export(report, path)
    opened = open_page(path)
    opened.page.wait_for_function("() => document.querySelector('.ledger > li')")
    return opened


@pytest.fixture
def in_json(report):
    return json.loads(json.dumps(report_json(report)))


def test_causes_have_one_value(report, shown, in_json):
    on_page = dict(shown.page.evaluate(ACCOUNT))
    lost = report.explanation.lost_time
    text = report_text(report, width=200)
    causes = {name: ns for name, ns in lost.shown_ns().items() if ns is not None}
    for name, ns in causes.items():
        percent, time = percent_text(lost.fraction(name)), duration_text(ns)
        label = BY_COLUMN[name].label
        assert on_page[label].replace("\N{MINUS SIGN}", "-") == f"{time} · {percent}"
        assert re.search(rf"^{re.escape(label)} +{re.escape(percent)} +{re.escape(time)}", text, re.MULTILINE)
        if lost.basis == "iteration":
            assert percent_text(in_json["iterations"]["fractions"][name]) == percent
        points = re.search(rf"([\d.]+)(?: points)? {re.escape(label)}\b", report.verdict.why)
        assert points is None or f"{points[1]} %" == percent
    assert f"{percent_text(lost.lost_fraction)} " in report.verdict.why
    assert (
        duration_text(lost.whole_ns // lost.rows)
        in shown.page.locator("details", has_text="Where the").inner_text()
    )


def test_lengths_and_bubbles_of_steps_have_one_value(report, shown, in_json):
    table = step_and_rank_tables(report)
    captions = shown.page.evaluate(CAPTIONS)
    assert len(captions) == (0 if report.steps.height < 2 else report.steps.height)
    for caption, step in zip(captions, in_json["steps"], strict=len(captions) > 0):
        length, bubble = duration_text(step["window_ns"]), percent_text(step["bubble_fraction"])
        assert caption.startswith(f"step {step['step']}: {length}, bubble {bubble}")
        assert re.search(
            rf"^ *{step['step']} +{re.escape(length)} +{re.escape(bubble)}", table, re.MULTILINE
        ) or (report.steps.height > 20)
    assert f"The bubble is {percent_text(in_json['bubble']['fraction'])} of" in report_text(report, width=200)


def test_comparison_has_the_parts_of_the_report(report):
    """Over the steps that both count: a comparison leaves out outliers, and states it."""
    long_steps = compare(report.timeline, report.timeline).long_steps
    skipped = [] if long_steps is None else long_steps["step"].unique().to_list()
    run = analyze(report.timeline, skip_steps=skipped) if skipped else report
    compared = compare(report.timeline, report.timeline, skip_steps=skipped or None)
    assert not compared.leaves_out
    rows = {(row["subject"], row["part"]): row for row in compared.table.to_dicts()}
    lost = run.explanation.lost_time
    assert rows["iteration", None]["before_ns"] == pytest.approx(lost.mean_ns, abs=1)
    windows = run.steps.filter("in_totals")["window_ns"]
    assert rows["step", None]["before_ns"] == pytest.approx(windows.mean(), abs=1)
    losses = {row["part"]: row["ns"] for row in run.losses.drop_nulls("ns").to_dicts()}
    parts = {part: row["before_ns"] for (subject, part), row in rows.items() if subject == "part"}
    if min(parts.values()) >= 0:  # the table of losses offsets negative parts
        assert parts == pytest.approx({part: losses[part] for part in parts}, abs=1)
    assert duration_text(round(lost.mean_ns)) in comparison_tables(compared)
