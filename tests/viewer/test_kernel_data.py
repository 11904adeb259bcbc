"""Kernels in the data of the page: DeepSeek's pair, and too many of them."""

from dataclasses import replace
from pathlib import Path

import polars as pl

import stagescope
from column_blobs import read_blob
from stagescope.viewer import kernel_data
from stagescope.viewer.analysis_data import report_extras
from stagescope.viewer.run_data import viewer_data

DEEPSEEK = Path(__file__).parents[1] / "data/kernels/deepseek_train.json.gz"


def test_every_kernel_is_in_the_page_with_its_lane_and_action():
    timeline = stagescope.read(DEEPSEEK)
    data = viewer_data(timeline)
    assert "kernels" in data.meta["sections"]
    table, _ = read_blob(data.tables["kernels"])
    assert len(table["row"]) == timeline.kernels.height == 983
    assert set(zip(table["lane"], table["stream"], strict=True)) == {(0, 7), (1, 23), (2, 27)}
    assert sorted(set(table["action"]))[:3] == ["F, attn(F)", "F, combine(F)", "F, dispatch(F)"]
    lengths_ns = timeline.kernels.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    assert sum(table["duration"]) == lengths_ns.sum()


def test_a_run_without_kernels_has_no_section():
    timeline = stagescope.read(DEEPSEEK)
    assert "kernels" not in viewer_data(replace(timeline, kernels=timeline.kernels.clear())).tables


def test_too_many_kernels_are_omitted_with_a_diagnostic(monkeypatch):
    timeline = stagescope.read(DEEPSEEK)
    monkeypatch.setattr(kernel_data, "MOST_KERNELS", 982)
    monkeypatch.setattr("stagescope.viewer.run_data.MOST_KERNELS", 982)
    data = viewer_data(timeline)
    assert "kernels" not in data.tables
    assert "viewer.kernels_omitted" in {each["code"] for each in data.meta["diagnostics"]}


def test_an_unknown_bubble_has_its_reason_where_the_verdict_would_be():
    report = stagescope.analyze(stagescope.read(DEEPSEEK))
    expected = f"The bubble is unknown: {report.bubble.unknown_because}."
    assert report_extras(report).objects["verdict"]["why"] == expected
