"""Reading the processes of a report."""

import pytest

from nsight_reports import NCCL, SEND_RECV, Planted, write_report
from stagescope.ingest.device_ranges.process_trace import Unmarked
from stagescope.ingest.nsight.exports import read_report


@pytest.fixture
def read(tmp_path):
    def read(planted, pattern=None, **options):
        return read_report(write_report(tmp_path / "a.sqlite", planted, **options), pattern)

    return read


def rows(trace, *columns):
    return trace.spans.select("kind", *columns).rows()


def step_of_actions(planted, at, names=("forward_step", "backward_step"), pid=100):
    for place, name in enumerate(names):
        start = at + 100 * place
        planted.range(name, start, start + 50, pid=pid)
        planted.kernel(start + 10, start + 1000, start + 1040, pid=pid, device=pid % 8)


def test_names_without_numbers_are_numbered_in_each_step(read):
    planted = Planted()
    for step in (0, 1):
        at = 10_000 * step
        planted.range(f"iteration {step + 4}", at, at + 9000)
        step_of_actions(planted, at, ("forward_step", "forward_step", "backward_step", "backward_step"))
    (trace,) = read(planted)
    assert rows(trace, "microbatch", "step") == [
        ("forward", 0, 4), ("forward", 1, 4), ("backward", 0, 4), ("backward", 1, 4),
        ("forward", 0, 5), ("forward", 1, 5), ("backward", 0, 5), ("backward", 1, 5),
    ]  # fmt: skip
    assert not trace.is_numbered
    assert trace.steps["step"].to_list() == [4, 5]


def test_without_step_marks_a_repeated_action_begins_the_next_step(read):
    planted = Planted()
    for at in (0, 10_000):
        step_of_actions(planted, at, ("forward_0", "backward_0"))
    (trace,) = read(planted)
    assert [step for _, step in rows(trace, "step")] == [0, 0, 1, 1]


def test_processes_of_a_report_are_separate(read):
    planted = Planted()
    for pid in (101, 102):
        planted.last = 0
        step_of_actions(planted, 0, pid=pid)
    assert [(trace.device, trace.spans.height) for trace in read(planted)] == [(5, 2), (6, 2)]


def test_a_transfer_has_the_direction_of_its_range_or_none(read):
    planted = Planted()
    step_of_actions(planted, 0, ("PP:1F0", "PP:1B0"))
    planted.range("PP:1SEND_F0", 300, 350)
    planted.kernel(310, 2000, 2500, name=SEND_RECV, stream=NCCL)
    planted.kernel(900, 3000, 3500, name=SEND_RECV, stream=NCCL)
    (trace,) = read(planted)
    transfers = trace.spans.filter(trace.spans["lane"] == "comm").select(
        "kind", "stage", "microbatch", "title"
    )
    assert transfers.rows() == [("send_forward", 1, 0, None), ("other", None, None, "ncclSendRecv")]
    assert [note.code for note in trace.diagnostics] == ["transfers.no_direction"]


def test_without_kernels_actions_are_shown_at_host_times(read):
    planted = Planted()
    step_of_actions(planted, 0)
    (trace,) = read(planted, drop=["DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"])
    assert trace.spans.select("lane", "start_ns", "end_ns").rows() == [("host", 0, 50), ("host", 100, 150)]
    assert "nsys profile -t cuda,nvtx" in trace.diagnostics[0].message


def test_an_action_without_kernels_is_counted(read):
    planted = Planted()
    step_of_actions(planted, 0)
    planted.range("backward_step", 300, 350)
    (trace,) = read(planted)
    assert trace.spans["lane"].to_list() == ["compute", "compute", "host"]
    assert [(note.severity, note.count) for note in trace.diagnostics] == [("warning", 1)]


def test_names_that_match_the_pattern_are_actions(read):
    planted = Planted()
    step_of_actions(planted, 0, ("mb7/bwd",))
    (trace,) = read(planted, "mb{microbatch}/{kind}")
    assert rows(trace, "microbatch") == [("backward", 7)]


@pytest.mark.parametrize("names", [(), ("epoch", "B2"), ("aten::mm, seq = 1",)])
def test_a_report_without_action_ranges_is_unmarked(read, names):
    planted = Planted()
    step_of_actions(planted, 0, names)
    found = read(planted)
    assert isinstance(found, Unmarked)
    assert (found.range_count, found.names, found.faults) == (len(names), list(names), [])
