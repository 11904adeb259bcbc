"""Projecting ranges to the device."""

import numpy as np
import polars as pl
import pytest

from nsight_reports import ENGINE, NCCL, REDUCE, SEND_RECV, Planted, thread, write_report
from stagescope.ingest.device_ranges.enclosing_ranges import NO_RANGE, EnclosingRanges
from stagescope.ingest.device_ranges.projection import on_main_stream, project
from stagescope.ingest.nsight.report import Report

ACTIONS = pl.DataFrame(
    {
        "action": [0, 1],
        "thread": [thread(100), thread(100)],
        "start_ns": [0, 200],
        "end_ns": [100, 300],
        "is_backward": [False, True],
    }
)


@pytest.fixture
def projected(tmp_path):
    def projected(planted, drop=(), actions=ACTIONS):
        with Report(write_report(tmp_path / "a.sqlite", planted, drop=drop)) as report:
            return project(report, EnclosingRanges(actions))

    return projected


def spans(found, *, reduces=()):
    kinds = pl.DataFrame({"action": [0, 1], "is_reduce": [n in reduces for n in (0, 1)]})
    times, aside = on_main_stream(found.work, kinds)
    return times.sort("action").select("action", "start_ns", "end_ns").rows(), aside


def test_an_action_extends_from_its_first_kernel_to_its_last(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1100)
    graph = planted.kernel(90, 1500, 1600)
    planted.kernel(0, 1700, 1800, correlation=graph)
    planted.kernel(250, 2000, 2100, tid=ENGINE)
    planted.kernel(150, 1900, 1950)
    assert spans(projected(planted)) == ([(0, 1000, 1800), (1, 2000, 2100)], 0)


def test_kernels_on_other_streams_are_counted_and_do_not_extend_an_action(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1500)
    planted.kernel(20, 900, 950, stream=11)
    planted.kernel(30, 3000, 3100, stream=11)
    assert spans(projected(planted)) == ([(0, 1000, 1500)], 2)


def test_collectives_count_only_for_gradient_reductions(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1500)
    planted.kernel(20, 1600, 1900, name=REDUCE, stream=NCCL)
    planted.kernel(210, 2000, 2500, name=REDUCE, stream=NCCL)
    found = projected(planted)
    assert spans(found)[0] == [(0, 1000, 1500)]
    assert spans(found, reduces=(1,))[0] == [(0, 1000, 1500), (1, 2000, 2500)]


def test_transfers_are_separate_and_have_the_range_that_launched_them(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1500, name=SEND_RECV, stream=NCCL)
    planted.kernel(150, 2000, 2500, name=SEND_RECV, stream=NCCL)
    found = projected(planted)
    assert found.transfers.select("action", "start_ns", "end_ns").rows() == [
        (0, 1000, 1500),
        (NO_RANGE, 2000, 2500),
    ]
    assert found.work.is_empty()


def test_equal_correlation_ids_of_two_processes_are_distinguished(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1100)
    planted.last = 0
    planted.kernel(10, 5000, 5100, pid=200)
    both = pl.concat(
        [
            ACTIONS.head(1),
            ACTIONS.head(1).with_columns(action=pl.lit(1, pl.Int64), thread=pl.lit(thread(200))),
        ]
    )
    assert spans(projected(planted, actions=both))[0] == [(0, 1000, 1100), (1, 5000, 5100)]


def test_a_kernel_without_a_launch_is_counted(projected):
    planted = Planted()
    planted.kernel(0, 1000, 1100, correlation=77)
    planted.kernel(10, 2000, 2100)
    found = projected(planted)
    assert (found.kernel_count, found.unlaunched) == (2, 1)


def test_an_old_export_without_process_ids_of_kernels_has_one_process(projected):
    planted = Planted()
    planted.kernel(10, 1000, 1100)
    drop = ["ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid"]
    assert spans(projected(planted, drop))[0] == [(0, 1000, 1100)]


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_without_kernels_or_launches_nothing_is_projected(projected, table):
    planted = Planted()
    planted.kernel(10, 1000, 1100)
    found = projected(planted, [f"DROP TABLE {table}"])
    assert np.isin(found.work["action"].to_numpy(), [NO_RANGE]).all()
