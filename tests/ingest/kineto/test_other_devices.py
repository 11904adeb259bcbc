"""Devices that torch.profiler records in categories of their own."""

import pytest

import stagescope
from ingest.kineto.planted_traces import event, mark, write_trace


@pytest.mark.parametrize(
    ("category", "device"),
    [("mtia_runtime", "MTIA"), ("mtia_ccp_events", "MTIA"), ("xpu_runtime", "XPU"), ("hpu_op", "HPU"),
     ("privateuse1_runtime", "PrivateUse1"), ("glow_runtime", "Glow"), ("cpu_op", "cpu"), ("new_runtime", "cpu")],
)  # fmt: skip
def test_the_device_is_named_by_the_categories_of_its_events(tmp_path, category, device):
    actions = [mark("PP:0F0", 0, 10), mark("PP:0B0", 20, 30)]
    others = [
        event(category, "something", 1, 2, correlation=7),
        event(category, "something else", 2, 3, tid="queue"),
    ]
    timeline = stagescope.read(write_trace(tmp_path / "rank0.json", actions + others))
    assert timeline.ranks["device"].to_list() == [device]
    assert timeline.spans.height == 2


def test_kernels_of_an_xpu_give_device_times(tmp_path):
    events = [
        mark("PP:0F0", 0, 10),
        event("xpu_runtime", "urEnqueueKernelLaunch", 4, 5, correlation=3),
        event("kernel", "gemm", 100, 150, tid=2, correlation=3),
    ]
    spans = stagescope.read(write_trace(tmp_path / "rank0.json", events)).spans
    assert (spans["end_ns"] - spans["start_ns"]).to_list() == [50_000]
