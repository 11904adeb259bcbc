"""The search for a device, with replacements for torch's modules, as test machines have no such device."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from stagescope.record.devices import find_device
from stagescope.record.devices.device import OtherDeviceError
from stagescope.record.devices.torch_streams import MOST_STREAMS


class Streams:
    """A module like torch.cuda that notes the calls it receives."""

    def __init__(self, *, initialized=True, external=True, index=1, allocated=(0, 0, 0, 0)):
        self.index = index
        self.calls = []
        self._initialized = initialized
        self._external = external
        self._allocated = allocated
        self.Stream = lambda device, priority=0: ("stream of", device, priority)

    def is_initialized(self):
        return self._initialized

    def current_device(self):
        return self.index

    def current_stream(self, index):
        return f"current stream of {index}"

    def device_count(self):
        return len(self._allocated)

    def memory_allocated(self, index):
        return self._allocated[index]

    def get_device_name(self, index):
        return f"Model {index}"

    def is_current_stream_capturing(self):
        return False

    def Event(self, **options):  # noqa: N802 - the name of torch's class
        if "external" in options and not self._external:
            raise TypeError("unexpected keyword argument 'external'")
        return Event(self.calls, options)


class Event:
    def __init__(self, calls, options):
        self.calls, self.options = calls, options

    def record(self, *stream):
        self.calls.append(("record", *stream))

    def query(self):
        return 1

    def elapsed_time(self, other):
        return 2.5 if other is not self else 0.0


def torch_with(monkeypatch, **modules):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**modules))


def test_no_device_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_device(None) is None
    assert find_device("cuda:0") is None


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_initialized_device_is_found(monkeypatch, kind):
    torch_with(monkeypatch, **{kind: Streams()})
    for reported in (None, kind, f"{kind}:1"):
        found = find_device(reported)
        assert (found.name, found.model) == (f"{kind}:1", "Model 1")


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_search_never_initializes_a_device(monkeypatch, kind):
    torch_with(monkeypatch, **{kind: Streams(initialized=False)})
    assert find_device(None) is None
    assert find_device(f"{kind}:0") is None


def test_other_initialized_devices_are_ignored(monkeypatch):
    torch_with(monkeypatch, cuda=Streams(), npu=Streams())
    assert find_device("cpu") is None
    assert find_device("npu:1").name == "npu:1"


def test_partially_imported_torch_has_no_device(monkeypatch):
    torch_with(monkeypatch)
    assert find_device(None) is None
    assert find_device("xpu:0") is None


def test_events_have_timing_and_use_the_current_stream(monkeypatch):
    cuda = Streams()
    torch_with(monkeypatch, cuda=cuda)
    device = find_device(None)
    event = device.new_event()
    device.record(event)
    assert event.options == {"enable_timing": True}
    assert cuda.calls == [("record", "current stream of 1")]
    assert device.is_done(event) is True
    assert device.elapsed_ms(event, device.new_event()) == 2.5


def test_streams_of_cuda_are_found_by_their_numbers_and_made_once(monkeypatch):
    cuda, asked, current = Streams(), [], "a"
    cuda.current_stream = lambda index: asked.append(index) or f"stream {current} of {index}"
    numbers = SimpleNamespace(
        _cuda_getCurrentStream=lambda index: (current, index, 1),
        _cuda_isCurrentStreamCapturing=lambda: current == "captured",
    )
    torch_with(monkeypatch, cuda=cuda, _C=numbers)
    device = find_device(None)
    for current in ("a", "b", "a", "captured"):
        device.record(device.new_event())
        assert cuda.calls[-1] == ("record", f"stream {current} of 1")
        assert device.is_capturing() is (current == "captured")
    assert asked == [1, 1, 1]


def test_kept_streams_are_few(monkeypatch):
    cuda = Streams()
    torch_with(
        monkeypatch, cuda=cuda, _C=SimpleNamespace(_cuda_getCurrentStream=lambda _: (len(cuda.calls), 1, 1))
    )
    device = find_device(None)
    for _ in range(3 * MOST_STREAMS):
        device.record(device.new_event())
    assert len(cuda.calls) == 3 * MOST_STREAMS
    assert len(device._streams) <= MOST_STREAMS


def test_anchors_use_a_separate_stream(monkeypatch):
    cuda = Streams()
    torch_with(monkeypatch, cuda=cuda)
    device = find_device(None)
    device.record_on_side_stream(device.new_event())
    assert cuda.calls == [("record", ("stream of", 1, -1))]


def test_stream_without_priorities_is_used_for_anchors(monkeypatch):
    cuda = Streams()
    cuda.Stream = lambda device: ("stream of", device)
    torch_with(monkeypatch, cuda=cuda)
    device = find_device(None)
    device.record_on_side_stream(device.new_event())
    assert cuda.calls == [("record", ("stream of", 1))]


def test_synchronous_launch_stream_is_preferred_for_anchors(monkeypatch):
    npu = Streams()
    npu.SyncLaunchStream = lambda device: ("synchronous stream of", device)
    torch_with(monkeypatch, npu=npu)
    device = find_device(None)
    device.record_on_side_stream(device.new_event())
    assert npu.calls == [("record", ("synchronous stream of", 1))]


def test_reported_device_is_used_although_another_is_current(monkeypatch):
    cuda = Streams(index=0)
    torch_with(monkeypatch, cuda=cuda)
    device = find_device("cuda:3")
    assert (device.name, device.model) == ("cuda:3", "Model 3")
    device.record(device.new_event())
    device.record_on_side_stream(device.new_event())
    assert cuda.calls == [("record", "current stream of 3"), ("record", ("stream of", 3, -1))]


@pytest.mark.parametrize(
    ("allocated", "name"),
    [((0, 0, 0, 0), "cuda:0"), ((0, 0, 5, 0), "cuda:2"), ((7, 0, 5, 0), "cuda:0")],
    ids=["no tensors yet", "all tensors on another device", "tensors on the current device, too"],
)
@pytest.mark.parametrize("reported", [None, "cuda"])
def test_device_with_the_tensors_is_used_if_none_is_reported(monkeypatch, reported, allocated, name):
    torch_with(monkeypatch, cuda=Streams(index=0, allocated=allocated))
    assert find_device(reported).name == name


def test_unclear_device_is_refused(monkeypatch):
    torch_with(monkeypatch, cuda=Streams(index=0, allocated=(0, 1, 1, 0)))
    with pytest.raises(RuntimeError, match="uses the devices 1, 2, but the current device is 0"):
        find_device(None)


@pytest.mark.parametrize(("hip", "resolution_ns"), [(None, 500), ("7.1.25424", 1000)])
def test_resolution_is_that_of_the_driver(monkeypatch, hip, resolution_ns):
    torch_with(monkeypatch, cuda=Streams(), version=SimpleNamespace(hip=hip))
    assert find_device(None).resolution_ns == resolution_ns


def test_graphs_use_external_events_if_available(monkeypatch):
    torch_with(monkeypatch, cuda=Streams())
    assert find_device(None).new_graph_event().options == {"enable_timing": True, "external": True}
    torch_with(monkeypatch, cuda=Streams(external=False))
    assert find_device(None).new_graph_event() is None


def test_device_without_a_name_works(monkeypatch):
    cuda = Streams()
    cuda.get_device_name = None
    torch_with(monkeypatch, cuda=cuda)
    assert find_device(None).model == ""


def accelerator(kind, index=0):
    calls = []
    return SimpleNamespace(
        calls=calls,
        accelerator=SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type=kind) if kind else None,
            current_device_index=lambda: index,
            current_stream=lambda index: f"current stream of {index}",
        ),
        device=lambda name: SimpleNamespace(
            type=name.partition(":")[0], index=int(name.partition(":")[2]) if ":" in name else None
        ),
        Stream=lambda device: ("stream of", device),
        Event=lambda **options: Event(calls, options),
    )


@pytest.mark.parametrize("reported", ["xpu", "xpu:0"])
def test_reported_accelerator_is_found(monkeypatch, reported):
    torch = accelerator("xpu")
    monkeypatch.setitem(sys.modules, "torch", torch)
    device = find_device(reported)
    assert device.name == "xpu:0"
    event = device.new_event()
    device.record(event)
    device.record_on_side_stream(event)
    assert torch.calls == [("record", "current stream of 0"), ("record", ("stream of", "xpu:0"))]
    assert event.options == {"device": "xpu:0", "enable_timing": True}
    assert (device.new_graph_event(), device.is_capturing(), device.is_done(event)) == (None, False, True)
    assert device.elapsed_ms(event, device.new_event()) == 2.5


def test_accelerator_of_another_kind_is_ignored(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", accelerator("xpu", index=1))
    assert find_device(None) is None
    assert find_device("hpu:0") is None
    assert find_device("xpu").name == "xpu:1"


def paddle_on(device, **base):
    calls = []
    of_paddle = SimpleNamespace(
        Event=lambda **options: Event(calls, options),
        Stream=lambda device: ("stream of", device),
        cuda=SimpleNamespace(get_device_name=lambda name: f"Model of {name}"),
    )
    return SimpleNamespace(calls=calls, device=of_paddle, get_device=lambda: device, **base)


def test_reported_paddle_device_is_found(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    paddle = paddle_on("gpu:1")
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    assert [find_device(reported) for reported in (None, "cpu", "cuda:1")] == [None] * 3
    device = find_device("gpu:1")
    assert (device.name, device.model) == ("gpu:1", "Model of gpu:1")
    event = device.new_event()
    device.record(event)
    device.record_on_side_stream(event)
    assert paddle.calls == [("record",), ("record", ("stream of", "gpu:1"))]
    assert event.options == {"enable_timing": True}
    assert (device.new_graph_event(), device.is_capturing(), device.is_done(event)) == (None, False, True)
    assert device.elapsed_ms(event, device.new_event()) == 2.5


def test_action_on_another_paddle_device_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    core = SimpleNamespace(is_cuda_graph_capturing=lambda: True)
    monkeypatch.setitem(sys.modules, "paddle", paddle_on("gpu:0", base=SimpleNamespace(core=core)))
    device = find_device("gpu:1")
    assert device.is_capturing() is True
    with pytest.raises(OtherDeviceError, match="runs on gpu:0 and not on gpu:1"):
        device.record(device.new_event())


@pytest.mark.slow
def test_real_torch_without_a_device_finds_none():
    code = (
        "import torch; from stagescope.record.devices import find_device as find; "
        "assert torch.cuda.is_available() or [find(t) for t in (None, 'cpu', 'xpu:0', 'cuda:0')] == [None] * 4; "
        "assert not torch.cuda.is_initialized()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
