"""Combining the reports of several ranks."""

import polars as pl
import pytest

from nsight_reports import EPOCH_NS, Planted, write_report
from stagescope.ingest.device_ranges.timeline import timeline_of_traces
from stagescope.ingest.nsight.exports import read_report
from stagescope.vocabulary.errors import InputError


@pytest.fixture
def report(tmp_path):
    def report(name, *pids, names=("F{pid}.0", "B{pid}.0"), **options):
        planted = Planted()
        for pid in pids:
            planted.last = 0
            for place, text in enumerate(names):
                at = 100 * place
                planted.range(text.format(pid=pid), at, at + 50, pid=pid)
                planted.kernel(at + 10, at + 1000, at + 1050, pid=pid, device=7 - pid)
        path = write_report(tmp_path / name, planted, **options)
        return read_report(path)

    return report


def messages(timeline, severity):
    return timeline.diagnostics.filter(pl.col("severity") == severity)["message"].to_list()


def test_ranks_come_from_file_names_and_every_report_has_its_own_clock(report):
    timeline = timeline_of_traces(
        [report("rank3.sqlite", 1), report("rank2.sqlite", 0, epoch_ns=EPOCH_NS + 9)]
    )
    assert timeline.ranks.select("rank", "device", "machine", "clock").rows() == [
        (2, "NVIDIA H100", "node1", "node1/session of rank2.sqlite"),
        (3, "NVIDIA H100", "node1", "node1/session of rank3.sqlite"),
    ]
    assert timeline.clocks["error_hi_ns"].to_list() == [None, None]
    assert timeline.spans.group_by("rank").agg(pl.min("start_ns") - EPOCH_NS).sort("rank").rows() == [
        (2, 1009),
        (3, 1000),
    ]


def test_processes_of_one_report_are_numbered_by_device_with_a_warning(report):
    timeline = timeline_of_traces([report("node.sqlite", 0, 1)])
    assert timeline.spans.select("rank", "stage").unique().sort("rank").rows() == [(0, 1), (1, 0)]
    assert timeline.clocks["error_hi_ns"].to_list() == [0]
    assert "no report states its rank" in messages(timeline, "warning")[0]


def test_steps_are_found_without_marks(report):
    steps = timeline_of_traces([report("rank0.sqlite", 0)]).steps
    assert steps.select("step", "rank", pl.col("start_ns", "end_ns") - EPOCH_NS).rows() == [
        (0, 0, 1000, 1150)
    ]


def test_missing_microbatches_and_session_times_are_warnings(report):
    timeline = timeline_of_traces([report("rank0.sqlite", 0, names=("forward", "backward"), epoch_ns=None)])
    first, second = messages(timeline, "warning")
    assert "wrong for several chunks" in first
    assert "when its session began" in second


def test_a_report_without_actions_is_an_error_with_and_without_others(report):
    bare = report("rank1.sqlite", 1, names=("epoch",))
    timeline = timeline_of_traces([report("rank0.sqlite", 0), bare])
    assert ["none of the NVTX ranges" in text for text in messages(timeline, "error")] == [True]
    with pytest.raises(InputError, match="none of its 1 NVTX ranges is named like one: 'epoch'") as error:
        timeline_of_traces([bare])
    assert "torch.cuda.nvtx.range(f'F{stage}.{microbatch}')" in error.value.hint


def test_two_reports_of_one_rank_are_rejected(report):
    with pytest.raises(InputError, match="two recordings of rank 0"):
        timeline_of_traces([report("rank0.sqlite", 0), report("again_rank0.sqlite", 0)])
