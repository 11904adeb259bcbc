"""What was not recorded is unknown in tables, JSON, conditions and predictions, and not zero."""

import json

import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.analysis import to_json
from stagescope.cli.fail_if import judge, parse_condition
from stagescope.reports.markdown import report_markdown
from stagescope.vocabulary.causes import CAUSE_COLUMNS, MAY_BE_UNRECORDED
from truth.causes import loading
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import spans_of

TRANSFERS = ("exposed_communication_ns", "blocked_on_send_ns")


@pytest.fixture(scope="module")
def spans():
    plan = loading(make_plan(Shape(replicas=2, steps=5), Costs(reduce=20 * MS)), 5 * MS, recorded=True)
    return spans_of(simulate(plan))


def analyzed(spans):
    return stagescope.analyze(stagescope.Timeline.from_spans(spans))


def without(spans, *beginnings):
    is_gone = pl.any_horizontal(pl.col("kind").str.starts_with(each) for each in beginnings)
    return spans.filter(~is_gone)


def test_complete_recording_has_no_nulls(spans):
    report = analyzed(spans)
    assert not report.ledger.null_count().sum_horizontal().item()
    assert not report.iterations.null_count().sum_horizontal().item()
    assert not report.explanation.lost_time.unrecorded


@pytest.mark.parametrize(
    ("kinds", "columns"),
    [
        (("send_", "recv_"), TRANSFERS),
        (("grad_reduce",), ("gradient_reduction_ns",)),
        (("optimizer",), ("optimizer_ns",)),
        (("other",), ("data_loading_ns",)),
    ],
)
def test_unrecorded_causes_are_null_and_the_parts_still_sum(spans, kinds, columns):
    report = analyzed(without(spans, *kinds))
    for table in (report.ledger, report.iterations):
        null = {name for name in table.columns if table[name].null_count() == table.height}
        assert null == set(columns) & set(table.columns)
        assert null <= MAY_BE_UNRECORDED
    rows = report.ledger.select("window_ns", total=pl.sum_horizontal("ideal_work_ns", *CAUSE_COLUMNS))
    assert (rows["window_ns"] == rows["total"]).all()
    rows = report.iterations.select("iteration_ns", total=pl.sum_horizontal("busy_ns", *CAUSE_COLUMNS))
    assert (rows["iteration_ns"] == rows["total"]).all()
    assert report.losses["ns"].sum() == pytest.approx(report.iterations["iteration_ns"].mean(), rel=0.2)
    assert set(report.losses.filter(pl.col("ns").is_null())["part"]) == {name[:-3] for name in columns}
    found = json.loads(json.dumps(to_json(report)))
    assert {name for name, value in found["iterations"]["fractions"].items() if value is None} == set(columns)
    for column in columns:
        (judgment,) = judge(report, [parse_condition(f"{column[:-3]} > 0.9")])
        assert judgment.fails
        assert "was not recorded" in judgment.text


def test_transfers_that_were_not_recorded_are_not_made_free(spans):
    report = analyzed(without(spans, "send_", "recv_"))
    assert not report.improvements["change"].str.contains("transfers").any()
    assert "exposed communication | - | not recorded |" in report_markdown(report)
    predicted = stagescope.what_if(report.timeline, stagescope.FreeTransfers()).table
    assert predicted["predicted_step_ns"].to_list() == [None]
    assert predicted["note"][0] == "transfers were not recorded, so their time is unknown"
    assert report.ranks["receive_wait_ns"].null_count() == report.ranks.height


@pytest.mark.parametrize("name", ["primus-pp8", "megascan-pp"])
def test_real_runs_without_transfers_have_unknown_communication(name):
    report = stagescope.analyze(stagescope.read(DATA / "public_runs" / f"{name}.parquet"))
    assert report.ledger["exposed_communication_ns"].null_count() == report.ledger.height
    assert report.explanation.overlap["transfer_exposed_ns"].null_count() == report.explanation.overlap.height
