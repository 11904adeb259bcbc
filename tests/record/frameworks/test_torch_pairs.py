"""Overlapped pairs of torch's schedules are recorded in Python, or in C where nothing is unusual: both are the same."""

# ruff: noqa: ARG002, FBT002 - the signatures are torch's

from __future__ import annotations

import random
import sys
import threading
from contextlib import suppress

import pytest

import simulated_gpu
from fake_torch import ComputationType, FakeTorch, RecordFunction, Work
from framework_trainings import spans_in
from stagescope.record import compiled
from stagescope.record.format import NONE
from stagescope.record.frameworks import torch_pipelining
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.torch_messages import Messages
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder

FIELDS = ("step", "stage", "microbatch", "chunk", "peer", "bytes", "pair")
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
STEPS = 4
needs_extension = pytest.mark.skipif(
    compiled.extension() is None, reason="the extension has not been built here"
)


class FailedWork(Work):
    """A handle whose wait fails if it is one of those that `fail`."""

    fail: tuple[Work, ...] = ()

    def wait(self, timeout=None):
        super().wait(timeout)
        if self in FailedWork.fail:
            raise ConnectionError


class Training:
    """A fake torch with the hooks installed, and one schedule with a single stage, whose steps call `body`."""

    def __init__(self, torch, directory, monkeypatch, body, *, custom=(), device="cpu"):
        for name, module in torch.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        self.torch, self.body, self.inside = torch, body, bool
        self.recorder, self.patches = Recorder(str(directory)), Patches()
        torch_pipelining.instrument(torch.schedules, self.recorder, self.patches)
        self.ranges = torch.schedules.record_function
        base, training = torch.stage._PipelineStageBase, self

        class Stage(base):
            def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True, last_backward=False):
                training.inside()
                return super().backward_one_chunk(bwd_chunk_id, full_backward=full_backward)

        self.stage = Stage(stage_index=2, num_stages=3)
        self.stage.device = device
        self.schedule = torch.schedules.PipelineScheduleMulti(
            self.stage, lambda _: self.body(self), custom=custom
        )

    def step(self):
        self.schedule.step()

    def finish(self):
        self.patches.undo()
        self.recorder.stop("test")

    def receive(self, operations):
        return self.torch.schedules._batch_p2p(operations)

    def pair(self, forward, backward):
        """The overlapped pair of two micro-batches, as ``_PipelineScheduleRuntime`` performs it."""
        received = self.receive(self.stage.get_fwd_recv_ops(forward))
        with self.ranges(f"PP:(2F{forward};2B{backward})OVERLAP_F_B"):
            self.torch.wait(received)
            output = self.stage.forward_one_chunk(forward, (), {}, save_forward_output=True)
            self.schedule._maybe_compute_loss(self.stage, output, None, forward)
            self.stage.backward_one_chunk(backward, loss=None, full_backward=True, last_backward=False)
        with self.ranges(f"PP:2SEND_B{backward}"):
            return self.torch.schedules._batch_p2p(self.stage.get_bwd_send_ops(backward))


def rows_of(directory):
    """The spans in any order: the kind, the fields, and whether each time is known."""
    before = len(FIELDS) + 1
    rows = spans_in(directory, *FIELDS, *TIMES)
    return sorted((*row[:before], *(time != NONE for time in row[before:])) for row in rows)


def pairs_of(directory):
    return [(row[0], row[1], row[3], row[7]) for row in rows_of(directory) if row[7] != NONE]


def two_pairs(training):
    sends = [*training.pair(1, 0), *training.pair(2, 1)]
    with training.ranges("PP:2F3"):
        training.stage.forward_one_chunk(3, (), {})
    training.torch.wait(sends)


PAIRS_OF_A_STEP = (
    ("backward", 0, 0), ("backward", 1, 1), ("forward", 1, 0), ("forward", 2, 1), ("loss", 1, 0), ("loss", 2, 1),
)  # fmt: skip
"""The kind and the micro-batch of each action, and the place of its pair in the step."""


@pytest.mark.usefixtures("way")
def test_the_actions_of_a_pair_have_its_number_and_no_others_have(tmp_path, monkeypatch):
    training = Training(FakeTorch(13), tmp_path, monkeypatch, two_pairs)
    for _ in range(3):
        training.step()
    training.finish()
    assert pairs_of(tmp_path) == sorted(
        (kind, step, microbatch, 1 + 2 * step + place)
        for step in range(3)
        for kind, microbatch, place in PAIRS_OF_A_STEP
    )
    rows = rows_of(tmp_path)
    kinds = [row[0] for row in rows]
    assert [kinds.count(kind) for kind in ("forward", "recv_forward", "send_backward")] == [9, 6, 6]
    assert all(row[-2:] == (True, True) for row in rows if row[0] in {"recv_forward", "send_backward"})


@needs_extension
@pytest.mark.parametrize("custom", [(), ("REDUCE_GRAD",)], ids=["certain", "observed"])
def test_pairs_and_their_messages_are_recorded_without_python(tmp_path, monkeypatch, custom):
    training = Training(FakeTorch(13), tmp_path, monkeypatch, two_pairs, custom=custom)
    for _ in range(2):
        training.step()
    for owner, name in ((ActionsInProgress, "end"), (Messages, "_take_over"), (Messages, "_waited")):
        monkeypatch.setattr(owner, name, None)
    for _ in range(2):
        training.step()
    assert all(guard.errors == 0 for guard in training.recorder.guards.values())
    training.finish()
    assert len(pairs_of(tmp_path)) == 4 * 6


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("failing", ["forward", "wait", "backward"])
def test_a_pair_that_fails_ends_with_its_step(tmp_path, monkeypatch, failing):
    training = Training(FakeTorch(13, FailedWork), tmp_path, monkeypatch, two_pairs)
    training.step()

    def fail():
        raise ArithmeticError

    def failing_pair(training):
        with training.ranges("PP:(2F1;2B0)OVERLAP_F_B"):
            if failing == "forward":
                training.stage.forward_one_chunk(1, (), {})
                fail()
            if failing == "wait":
                monkeypatch.setattr(FailedWork, "fail", training.receive(training.stage.get_fwd_recv_ops(1)))
                training.torch.wait(FailedWork.fail)
            training.inside = fail
            training.stage.backward_one_chunk(0)

    training.body = failing_pair
    with pytest.raises((ArithmeticError, ConnectionError)):
        training.step()
    recorder = training.recorder
    assert (recorder.pair, recorder.is_in_range, recorder.plain_in_range) == (NONE, False, None)
    training.inside = bool
    training.stage.forward_one_chunk(8, (), {})
    training.body = two_pairs
    training.step()
    training.finish()
    found = pairs_of(tmp_path)
    assert [row for row in found if row[1] == 0] == sorted(
        (kind, 0, microbatch, 1 + place) for kind, microbatch, place in PAIRS_OF_A_STEP
    )
    assert [row for row in found if row[1] == 1] == [("forward", 1, 1, 3)] * (failing == "forward")
    assert [row for row in found if row[1] == 2] == sorted(
        (kind, 2, microbatch, 4 + place) for kind, microbatch, place in PAIRS_OF_A_STEP
    )
    assert ("forward", 1, 2, 8) in [row[:4] for row in rows_of(tmp_path)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("first", [two_pairs, lambda training: training.pair(1, 0)])
def test_a_step_may_end_with_a_pair(tmp_path, monkeypatch, first):
    training = Training(FakeTorch(13), tmp_path, monkeypatch, first)
    training.step()
    training.body = lambda training: training.pair(1, 0) and None
    training.step()

    def only_a_pair(training):
        with training.ranges("PP:(2F1;2B0)OVERLAP_F_B"):
            training.stage.forward_one_chunk(1, (), {})
            training.stage.backward_one_chunk(0)

    training.body = only_a_pair
    training.step()
    assert (training.recorder.pair, training.recorder.is_in_range) == (NONE, False)
    training.stage.forward_one_chunk(8, (), {})
    training.finish()
    assert [row[7] for row in rows_of(tmp_path) if row[0] == "forward" and row[3] == 8] == [NONE]


@pytest.mark.usefixtures("way")
def test_a_range_in_the_range_of_a_pair_leaves_the_pair_in_progress(tmp_path, monkeypatch):
    def nested(training):
        with training.ranges("PP:(2F1;2B0)OVERLAP_F_B"):
            with training.ranges("PP:2I5"):
                training.stage.backward_one_chunk(5, full_backward=False)
            training.stage.forward_one_chunk(1, (), {})
            with training.ranges("PP:2W5"):
                pass  # a function of the training
            training.stage.backward_one_chunk(0)
        training.stage.forward_one_chunk(3, (), {})

    training = Training(FakeTorch(13), tmp_path, monkeypatch, nested, custom=("OVERLAP_F_B",))
    for _ in range(3):
        training.step()
    training.finish()
    kinds = ["backward", "backward_input", "backward_weight", "forward"]
    assert [(kind, step) for kind, step, _, _ in pairs_of(tmp_path)] == [
        (kind, step) for kind in kinds for step in range(3)
    ]
    assert {(step, pair) for _, step, _, pair in pairs_of(tmp_path)} == {(0, 1), (1, 2), (2, 3)}


UNOBSERVED = ("PP:1F0", "PP:12I345", "PP:2W7", "PP:1SEND_F0", "PP:1RECV_B12", "PP:1WAIT_SEND_F0")
OBSERVED = (
    "PP:0UNSHARD", "PP:0RESHARD", "PP:0REDUCE_GRAD", "PP:0REDUCE_GRAD3", "PP:(1F6;6B2)OVERLAP_F_B",
    "PP:(1F6;6B2)OVERLAP_F_B3", "PP:1F", "PP:1FOLD7", "", "7", "F7", "PP:F7\u0667", "P\xe9:1F0",
)  # fmt: skip


@needs_extension
def test_single_actions_are_ranges_of_torch_from_the_first_one_where_methods_compute_all(
    tmp_path, monkeypatch
):
    training = Training(FakeTorch(13), tmp_path, monkeypatch, lambda _: None)
    ranges = training.ranges

    def unobserved():
        return [name for name in (*UNOBSERVED, *OBSERVED) if type(ranges(name)) is RecordFunction]

    assert unobserved() == []
    training.step()  # which shows that there are no functions of the training
    assert unobserved() == list(UNOBSERVED)
    training.schedule._comp_type_to_function_map = {ComputationType("FORWARD"): None}
    training.step()
    assert unobserved() == []
    training.finish()


class Oddities:
    """Steps that make calls at random; those of both ways are the same for the same seed.

    Only functions of the training bypass the methods of stages, which it has if that `is_possible`.
    """

    def __init__(self, seed, oddity, *, is_possible):
        self.random, self.oddity = random.Random(seed), oddity  # noqa: S311  # no secret
        self.kinds = ["thread", "order", "failed", *["bypassed"] * is_possible]

    def is_odd(self):
        return self.random.random() < self.oddity

    def __call__(self, training):
        training.recorder.switch(on=True)
        training.inside, self.training = self.inside, training
        self.sends = []
        for number in range(1, 9):
            if self.random.random() < 0.7:
                self.sends += self.pair(number)
            else:
                with training.ranges(f"PP:2F{number}"):
                    training.stage.forward_one_chunk(number, (), {})
                with training.ranges(f"PP:2B{number - 1}"):
                    training.stage.backward_one_chunk(number - 1)
            if self.is_odd():
                training.receive(training.stage.get_fwd_recv_ops(number + 1))  # waited for by nothing
        training.torch.wait(self.sends)

    def pair(self, number):
        if not self.is_odd():
            return self.training.pair(number, number - 1)
        oddity = self.random.choice(self.kinds)
        with self.training.ranges(f"PP:(2F{number};2B{number - 1})OVERLAP_F_B"):
            if oddity == "thread":
                other = threading.Thread(target=self.training.stage.forward_one_chunk, args=(number, (), {}))
                other.start()
                other.join()
            if oddity in {"thread", "order"}:
                self.training.stage.backward_one_chunk(number - 1)
            if oddity == "order":
                self.training.stage.forward_one_chunk(number, (), {})
            if oddity == "failed":
                raise ArithmeticError
        return []

    def inside(self):
        """Something in a backward."""
        recorder = self.training.recorder
        if not self.is_odd():
            return
        oddity = self.random.choice(["reduced", "nested", "switched", "failed"])
        if oddity == "reduced":
            recorder.computed = recorder.timer.begin()
        if oddity == "nested":
            self.training.stage.forward_one_chunk(77, (), {})
        if oddity == "switched":
            recorder.switch(on=False)
        if oddity == "failed":
            raise ArithmeticError


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record random steps, in Python or compiled, and return the rows and the number of errors."""

    def record(oddities, release, *, is_compiled, **given):
        directory = tmp_path / str(is_compiled)
        with monkeypatch.context() as patched:
            simulated_gpu.use(patched)
            if not is_compiled:
                patched.setattr(compiled, "extension", lambda: None)
            training = Training(FakeTorch(release), directory, patched, oddities, **given)
            for _ in range(STEPS):
                with suppress(ArithmeticError):
                    training.step()
            errors = sum(guard.errors for guard in training.recorder.guards.values())
            training.finish()
        return rows_of(directory), errors

    return record


@needs_extension
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("oddity", [0, 0.05, 0.3])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("version", [(8, ()), (9, ()), (13, ()), (13, ("OVERLAP_F_B",)), (15, ())])
def test_both_ways_record_the_same_of_any_pairs(recorded, seed, oddity, device, version):
    release, custom = version
    in_python, in_c = (
        recorded(Oddities(seed, oddity, is_possible=release < 10 or bool(custom)), release,
                 is_compiled=is_compiled, custom=custom, device=device)
        for is_compiled in (False, True)
    )  # fmt: skip
    assert in_python == in_c
    assert in_c[1] == 0
    assert any(row[7] != NONE for row in in_c[0]) or oddity > 0
