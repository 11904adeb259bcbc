"""Megatron-core is recorded in Python, or in C where nothing is unusual: both record the same of any calls."""

from __future__ import annotations

import gc
import random
import sys
import types
from contextlib import suppress

import numpy as np
import pytest

import framework_trainings as trainings
import simulated_gpu
from megatron_head import combined_1f1b, p2p_communication, schedules
from megatron_head.p2p_communication import Group, Tensor, Work
from stagescope.record import compiled
from stagescope.record.format import NONE
from stagescope.record.frameworks import megatron
from stagescope.record.frameworks.works import works_of
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder

NAME = "Megatron-core"
RUN = "forward_backward_pipelining_with_interleaving"
FIELDS = ("step", "stage", "microbatch", "chunk", "peer", "bytes", "pair")
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


class BrokenWork(Work):
    def wait(self):
        raise ConnectionError(self.name)


class Schedule:
    """A schedule that makes calls at random; those of both ways are the same for the same seed."""

    def __init__(self, seed, chunks, oddity):
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.chunks, self.oddity = chunks, oddity
        self.begin()

    def begin(self):
        self.received, self.made, self.handles = [], [], []
        self.counts = [0] * self.chunks

    def is_odd(self):
        return self.random.random() < self.oddity

    def __call__(self, recorder):
        self.begin()
        self.forward()
        for _ in range(60):
            chosen = self.random.choice([self.forward, self.forward, self.backward, self.backward, self.exchange,
                                         self.exchange, self.exchange, self.wait])  # fmt: skip
            if self.is_odd():
                chosen = self.random.choice([self.merged, lambda: self.switch(recorder), self.repeat])
            chosen()
        recorder.switch(on=True)

    def switch(self, recorder):
        recorder.switch(on=self.random.random() < 0.7)

    def taken(self):
        """What an action receives, which is usually a tensor that was received, waited for or not."""
        found = self.received.pop(0) if self.received else None
        if self.is_odd():
            found = self.random.choice(
                [None, Tensor(), [found], [found, Tensor()], {"a": found}, (found,), [None]]
            )
        return found

    def result(self):
        if not self.is_odd():
            return Tensor()
        kind = self.random.choice(["none", "two", "dict", "number", "nested", "error", "tuple", "list"])
        if kind == "nested":
            self.forward()
        if kind == "error":
            raise ArithmeticError
        return {
            "none": None, "two": [Tensor(), Tensor()], "dict": {"a": Tensor()}, "number": 7.5, "tuple": (Tensor(),),
            "list": [Tensor()],
        }.get(kind, Tensor())  # fmt: skip

    def forward(self):
        chunk = self.random.randrange(self.chunks)
        number = self.counts[chunk]
        self.counts[chunk] += 1
        given = {"current_microbatch": number}
        if self.chunks > 1:
            given["vp_stage"] = chunk
        if self.is_odd():
            given |= self.random.choice([
                {"current_microbatch": None}, {"vp_stage": None}, {"current_microbatch": np.int64(number)},
                {"vp_stage": np.int64(chunk)}, {"current_microbatch": "one"}, {"vp_stage": 9},
                {"current_microbatch": 2**31}, {"vp_stage": True}, {"current_microbatch": True},
                {"current_microbatch": -1}, {"vp_stage": -1},
            ])  # fmt: skip
        model, taken = MODELS[chunk], self.taken()
        first = (lambda _: self.result(), None, model, 8)
        rest = ([], None, 1)
        try:
            if self.is_odd():
                given = {"".join(["_", *name])[1:]: value for name, value in given.items()}
                made, _ = schedules.forward_step(
                    *first, forward_data_store=[], config=None, cp_group_size=1, input_tensor=taken, **given
                )
            elif self.is_odd():
                numbers = (given.get("current_microbatch"), given.get("vp_stage"))
                made, _ = schedules.forward_step(*first, taken, *rest, False, None, False, *numbers)
            else:
                made, _ = schedules.forward_step(*first, taken, *rest, **given)
        except ArithmeticError:
            return
        self.made.append(made)

    def backward(self):
        if not self.made:
            return
        made = self.made.pop(self.random.choice([0, 0, 0, -1]))
        if self.is_odd():
            made = self.random.choice([[made], made, None, Tensor(), [made, made]])
        config = self.result
        try:
            if self.is_odd():
                done = schedules.backward_step(
                    config=config, output_tensor_grad=self.taken(), output_tensor=made, input_tensor=None
                )
            else:
                done = schedules.backward_step(None, made, self.taken(), config)
        except ArithmeticError:
            return
        self.exchange(tensor_send_prev=done[0] if isinstance(done, list) else done)

    def repeat(self):
        """Take a tensor again, or use an output in two backwards."""
        if self.received:
            self.received.append(self.received[0])
        if self.made:
            self.made.append(self.made[0])

    def exchange(self, **sent):
        tensors = {
            f"tensor_{way}": None for way in ("send_prev", "recv_prev", "send_next", "recv_next")
        } | sent
        for name in ("tensor_recv_prev", "tensor_recv_next"):
            if self.random.random() < 0.4:
                again = self.is_odd() and self.received
                tensors[name] = self.random.choice(self.received) if again else Tensor()
                self.received.append(tensors[name])
        if self.random.random() < 0.5 and self.made:
            last = self.made[-1]
            tensors["tensor_send_next"] = last[0] if isinstance(last, list) else last
        if self.is_odd():
            tensors["tensor_send_next"] = Tensor()
        tensors = {name: one if isinstance(one, Tensor) else None for name, one in tensors.items()}
        peers = {"group": Group(1, 3), "prev_pipeline_rank": 4, "next_pipeline_rank": 6}
        if self.is_odd():
            peers["next_pipeline_rank"] = self.random.choice([None, "x", np.int64(6), 2**40])
        issue = self.random.choice([p2p_communication._p2p_ops, p2p_communication._batched_p2p_ops])
        handles = issue(**tensors, **peers)
        handles = list(handles.values()) if isinstance(handles, dict) else handles
        if handles and self.is_odd():
            self.random.shuffle(handles)
            handles.pop()
        self.handles += handles
        while self.handles and self.random.random() < 0.7:
            self.wait()

    def wait(self):
        if not self.handles:
            return
        handle = self.handles.pop(0)
        if self.is_odd():
            self.handles.append(handle)
        with suppress(ConnectionError):
            handle.wait()

    def merged(self):
        chunk = self.random.randrange(self.chunks)
        combined_1f1b.combined_forward_backward_step(
            lambda _: Tensor(), None, self.random.choice([MODELS[chunk], None]), 8, self.taken(), [],
            self.random.choice([MODELS[chunk], None]), None, self.made[-1] if self.made else None, self.taken(), None,
            f_model_chunk_id=chunk, pre_forward=lambda _: self.wait(),
            post_forward=lambda made, _: self.exchange(tensor_send_next=made),
            post_backward=lambda made, _: self.exchange(tensor_send_prev=made), current_microbatch=3,
        )  # fmt: skip


class Model:
    def parameters(self):
        return iter([types.SimpleNamespace(device="cpu")])


MODELS = [Model(), Model()]


def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
    del input_tensor, output_tensor, output_tensor_grad
    return config()


def issuing(*, in_order, is_odd, is_coalesced):
    """Return a function that issues transfers as gloo does, with a handle for each, or as NCCL; some of them fail."""
    numbers = [0]

    def issue(*, tensor_send_prev, tensor_recv_prev, tensor_send_next, tensor_recv_next, group, prev_pipeline_rank,
              next_pipeline_rank):  # fmt: skip
        del group, prev_pipeline_rank, next_pipeline_rank
        tensors = {"send_prev": tensor_send_prev, "recv_prev": tensor_recv_prev, "send_next": tensor_send_next,
                   "recv_next": tensor_recv_next}  # fmt: skip
        numbers[0] += 1
        made = BrokenWork if is_odd and numbers[0] % 11 == 0 else Work
        works = {name: made(name) for name, tensor in tensors.items() if tensor is not None}
        if is_coalesced and works:
            return [made("all")]
        if is_odd and numbers[0] % 7 == 0 and len(works) > 1:
            return [Work("all")]
        return list(works.values()) if in_order else works

    issue.__name__ = "_batched_p2p_ops" if in_order else "_p2p_ops"
    return issue


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record what a schedule does, in Python or compiled, and return the number of errors and its rows: the fields, and
    whether each time is known.
    """

    def record(schedule, *, is_compiled, oddity, clock, is_coalesced):
        with monkeypatch.context() as patched:
            if clock == "device":
                simulated_gpu.use(patched, host=None)
            if not is_compiled:
                patched.setattr(compiled, "extension", lambda: None)
            patched.setattr(schedules, RUN, lambda *, model, num_microbatches, forward_only=False,
                            p2p_communicator=None: schedule(recorder))  # fmt: skip
            patched.setattr(schedules, "backward_step", backward_step)
            for in_order in (False, True):
                issue = issuing(in_order=in_order, is_odd=oddity > 0, is_coalesced=is_coalesced)
                patched.setattr(p2p_communication, issue.__name__, issue)
            directory = tmp_path / ("compiled" if is_compiled else "python")
            recorder, patches = Recorder(str(directory)), Patches()
            for module in (combined_1f1b, schedules):
                megatron.instrument(module, recorder, patches)
            for owner in (Work, BrokenWork):
                patches.observe(owner, "wait", works_of(recorder).wait, recorder.guards[NAME])
            link = p2p_communication.P2PCommunicator(1, 3)
            for forward_only in (False, True, False):
                model = MODELS[: schedule.chunks]
                vars(schedules)[RUN](
                    model=model, num_microbatches=8, forward_only=forward_only, p2p_communicator=link
                )
            errors = recorder.guards[NAME].errors
            patches.undo()
            recorder.stop("test")
        rows = trainings.spans_in(directory, *FIELDS, *TIMES)
        before = len(FIELDS) + 1
        return errors, [(*row[:before], *(time != NONE for time in row[before:])) for row in rows]

    return record


@pytest.mark.skipif(compiled.extension() is None, reason="the extension has not been built here")
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("oddity", [0, 0.02, 0.2])
@pytest.mark.parametrize("where", [("host", False), ("host", True), ("device", False), ("device", True)])
def test_both_ways_record_the_same_of_any_calls(recorded, seed, chunks, oddity, where):
    clock, is_coalesced = where
    given = {"oddity": oddity, "clock": clock, "is_coalesced": is_coalesced}
    found = [
        recorded(Schedule(seed, chunks, oddity), is_compiled=is_compiled, **given)
        for is_compiled in (False, True)
    ]
    (errors, in_python), (errors_compiled, in_c) = found
    assert errors == errors_compiled == 0
    assert sorted(in_python) == sorted(in_c)
    kinds = {"forward", "backward", "step"}
    if clock == "device":
        kinds = {"step"}  # the times of actions of both ways become known at once, those of C first
    in_order = [[row for row in rows if row[0] in kinds] for rows in (in_python, in_c)]
    assert in_order[0] == in_order[1]  # messages that are left at the end of a run are in a set


class Even(Schedule):
    """A schedule whose actions take and send all tensors, which counts the blocks of memory that are in use."""

    def __call__(self, recorder):
        self.begin()
        self.blocks = []
        for number in range(600):
            if number in {100, 599}:
                recorder.flush()
                gc.collect()
                self.blocks.append(sys.getallocatedblocks())
            self.exchange()
            self.forward()
            self.exchange(tensor_send_next=self.made[0])
            self.backward()

    def exchange(self, **sent):
        names = ("tensor_send_prev", "tensor_recv_prev", "tensor_send_next", "tensor_recv_next")
        if not self.received:
            self.received.append(Tensor())
            sent["tensor_recv_prev"] = self.received[0]
        issue = self.random.choice([p2p_communication._p2p_ops, p2p_communication._batched_p2p_ops])
        handles = issue(
            **(dict.fromkeys(names) | sent), group=Group(1, 3), prev_pipeline_rank=4, next_pipeline_rank=6
        )
        self.handles += list(handles.values()) if isinstance(handles, dict) else handles
        while self.handles:
            self.wait()


@pytest.mark.skipif(compiled.extension() is None, reason="the extension has not been built here")
@pytest.mark.parametrize("is_coalesced", [False, True])
def test_calls_in_c_keep_nothing(recorded, is_coalesced):
    schedule = Even(3, 2, 0)
    recorded(schedule, is_compiled=True, oddity=0, clock="host", is_coalesced=is_coalesced)
    before, after = schedule.blocks
    assert after < before + 250, "of 500 forwards and backwards, and more transfers"
