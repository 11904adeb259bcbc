"""Reports of several ranks, put together."""

import polars as pl
import pytest

from nsight_reports import EPOCH_NS, Planted, write_report
from stagescope.ingest.nsight.process_trace import read_report
from stagescope.ingest.nsight.timeline import timeline_of_reports
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


def said(timeline, severity):
    return timeline.diagnostics.filter(pl.col("severity") == severity)["message"].to_list()


def test_ranks_are_those_in_the_names_of_the_files_each_report_on_a_clock_of_its_own(report):
    timeline = timeline_of_reports(
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


def test_processes_of_one_report_are_numbered_by_their_devices_and_that_is_said(report):
    timeline = timeline_of_reports([report("node.sqlite", 0, 1)])
    assert timeline.spans.select("rank", "stage").unique().sort("rank").rows() == [(0, 1), (1, 0)]
    assert timeline.clocks["error_hi_ns"].to_list() == [0]
    assert "no report tells its rank" in said(timeline, "warning")[0]


def test_steps_are_there_without_a_mark_of_them(report):
    steps = timeline_of_reports([report("rank0.sqlite", 0)]).steps
    assert steps.select("step", "rank", pl.col("start_ns", "end_ns") - EPOCH_NS).rows() == [
        (0, 0, 1000, 1150)
    ]


def test_names_without_numbers_and_a_session_without_a_time_are_said(report):
    timeline = timeline_of_reports([report("rank0.sqlite", 0, names=("forward", "backward"), epoch_ns=None)])
    first, second = said(timeline, "warning")
    assert "wrong for several chunks" in first
    assert "when its session began" in second


def test_a_report_without_actions_is_an_error_beside_others_and_alone(report):
    bare = report("rank1.sqlite", 1, names=("epoch",))
    timeline = timeline_of_reports([report("rank0.sqlite", 0), bare])
    assert ["no NVTX range" in text for text in said(timeline, "error")] == [True]
    with pytest.raises(InputError, match="none of its 1 NVTX ranges is called like one: 'epoch'") as error:
        timeline_of_reports([bare])
    assert "torch.cuda.nvtx.range(f'F{stage}.{microbatch}')" in error.value.hint


def test_two_reports_of_one_rank_are_refused(report):
    with pytest.raises(InputError, match="two recordings of rank 0"):
        timeline_of_reports([report("rank0.sqlite", 0), report("again_rank0.sqlite", 0)])
