"""Tokens and samples of micro-batches: by the shapes of tensors, and as the training states them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from observing import during
from stagescope import record
from stagescope.record import session
from stagescope.record.data_sizes import count_data, count_step
from stagescope.record.frameworks.runs import Place
from stagescope.record.frameworks.torch_iteration import Instrumentation


class Tensor:
    """A tensor with a shape, and values if it is small."""

    def __init__(self, *shape, dtype="torch.int64", device="cpu", values=()):
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._values = values

    def reshape(self, _):
        return self

    def tolist(self):
        if self.device != "cpu":
            raise AssertionError("reading a value of a device would wait for it")
        return list(self._values)


def counted(recorder):
    """Return what waits as (counter, value, stage, micro-batch)."""
    names = {number: name for name, number in recorder.name_ids.items()}
    return [(names[name], value, *place) for _, value, _, *place, name in recorder.counters._waiting]


FLOATS = Tensor(4, 16, 16, dtype="torch.float32")
PACKED = {"position_ids": Tensor(1, 9), "tokens": Tensor(1, 90)}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (Tensor(2, 512), [("tokens", 1024)]),
        ((Tensor(2, 512), FLOATS), [("tokens", 1024)]),
        (FLOATS, [("samples", 4)]),
        (Tensor(8), [("samples", 8)]),
        (Tensor(2, 512, dtype="torch.bool"), [("samples", 2)]),
        ([{"labels": FLOATS, "input_ids": Tensor(3, 7)}], [("tokens", 21)]),
        (
            PACKED | {"cu_seqlens": Tensor(4, values=(0, 30, 75, 90))},
            [("tokens", 90), ("longest sequence", 45)],
        ),
        (PACKED | {"cu_seqlens": Tensor(4, device="cuda:0", values=(0, 90))}, [("tokens", 90)]),
        (Tensor(), []),
        ("text", []),
        ([[[[[Tensor(2, 2)]]]]], []),
        (None, []),
    ],
)
def test_data_are_counted_by_their_first_tensor(recorder, data, expected):
    count_data(recorder, data, 0, 3)
    assert counted(recorder) == [(name, value, 0, 3) for name, value in expected]


def test_data_of_a_step_are_those_of_its_micro_batches(recorder):
    recorder.step = 3
    count_step(recorder, [(Tensor(2, 8),), (Tensor(1, 8), FLOATS)], [{}, {}])
    recorder.step = 4
    recorder.counters._later.popleft()(recorder.counters)
    count_step(recorder, [(FLOATS,), ()], [{"input_ids": Tensor(2, 3)}, {}])  # keywords, and nothing
    assert counted(recorder) == [("tokens", 16, 0, 0), ("tokens", 8, 0, 1), ("tokens", 6, 0, 0)]
    assert [step for _, _, step, *_ in recorder.counters._waiting] == [3, 3, 4]


def test_batch_that_a_forward_loads_is_that_of_its_micro_batch(recorder, patches):
    loading = Instrumentation(recorder, patches)
    batch = {"tokens": Tensor(2, 8)}

    def load():
        return during(loading.load(None), lambda: batch)

    assert load() is batch  # outside of a forward, it is unknown whose data these are
    assert counted(recorder) == []
    loading.activities.forward = Place(0, 5, 0)
    assert load() is batch
    assert counted(recorder) == [("tokens", 16, 0, 5)]


def test_training_that_counts_its_data_replaces_the_shapes(recorder, monkeypatch):
    record.tokens(7)  # not recording
    monkeypatch.setattr(session, "recorder", recorder)
    record.tokens(100, microbatch=2)
    record.samples(8)
    count_data(recorder, Tensor(2, 512), 0, 3)
    assert counted(recorder) == [("tokens", 100, -1, 2), ("samples", 8, -1, -1)]
    monkeypatch.setattr(session, "recorder", SimpleNamespace(enabled=False))
    record.tokens(1)
