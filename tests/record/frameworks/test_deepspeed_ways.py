"""DeepSpeed's engines are recorded in Python, or in C where nothing is unusual: both record the same of any calls."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import types
import weakref
from contextlib import suppress

import numpy as np
import pytest
from torch.distributed import distributed_c10d

import fake_deepspeed
import framework_trainings as trainings
import simulated_gpu
from children import only_contents
from stagescope.record import compiled
from stagescope.record.format import NONE
from stagescope.record.frameworks import deepspeed
from stagescope.record.frameworks.deepspeed_transfers import TRANSFERS
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder

FIELDS = ("step", "stage", "microbatch", "chunk", "peer", "bytes", "pair", "thread")
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
BATCHES, BUFFERS = 4, 3

pytestmark = pytest.mark.skipif(compiled.extension() is None, reason="the extension has not been built here")


class Tensor(fake_deepspeed.Tensor):
    def __init__(self, elements=4, dtype="float32"):
        super().__init__(elements)
        self.shape, self.dtype = (elements, 3), dtype


class Schedule:
    """A batch of instructions at random; those of both ways are the same for the same seed.

    It has the commands of a schedule, and knows what the engine's instructions do.
    """

    def __init__(self, seed, names, phases, oddity):
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.names, self.phases, self.oddity = names, phases, oddity
        self.recorder = self.module = self.engine = None
        self.depth = 0

    def is_odd(self):
        return self.random.random() < self.oddity

    def __iter__(self):
        for _ in range(40):
            if self.is_odd():
                self.random.choice([self.switch, self.mark])()
            with suppress(ArithmeticError, ConnectionError, TypeError):
                self.call(self.random.choice(self.names))
        self.recorder.alone = None
        self.recorder.switch(on=True)
        return iter(())

    def call(self, name):
        """Let the engine execute an instruction, as it does or in another way."""
        function = self.engine._INSTRUCTION_MAP[fake_deepspeed.INSTRUCTIONS.get(name) or LOAD]
        given = {} if name == "CommitP2P" else {"buffer_id": self.random.randrange(BUFFERS)}
        if name in self.phases:
            given["phase"] = self.random.randrange(2)
        form = self.random.choice(["unpacked", "positional", "more", "fewer", "phase", "thread"])
        if not self.is_odd():
            types.MethodType(function, self.engine)(**given)
        elif form == "unpacked":
            function(self.engine, **{"".join(["_", *key])[1:]: value for key, value in given.items()})
        elif form == "positional":
            function(self.engine, *given.values())
        elif form == "more":
            function(self.engine, **given, unheard=2)
        elif form == "fewer":
            function(self.engine)
        elif form == "phase" and "phase" in given:
            function(self.engine, **given | {"phase": self.random.choice([True, np.int64(1), 2, -1])})
        elif form == "thread":
            other = threading.Thread(target=quietly, args=(function, self.engine), kwargs=given)
            other.start()
            other.join()

    def switch(self):
        self.recorder.switch(on=self.random.random() < 0.7)

    def mark(self):
        """Let another framework's schedule run alone, or that of these hooks."""
        self.recorder.alone = self.random.choice([None, None, object()])

    def stage(self, number):
        """The stage of an engine, which is usually a number."""
        return self.random.choice([0, np.int64(2), "x", True, 2**40, -1]) if self.is_odd() else number

    def interrupt(self):
        """Call another instruction inside of this one, or switch recording, if that is odd."""
        if self.is_odd() and self.depth < 2:
            self.depth += 1
            try:
                self.call(self.random.choice(self.names))
            finally:
                self.depth -= 1
        if self.is_odd():
            self.switch()

    def run(self, name, buffer_id):
        """Do what an instruction does."""
        self.interrupt()
        if name in TRANSFERS and not self.phases:
            for _ in range(self.random.choice([1, 1, 1, 2, 0])):
                self.move(name)
        if name == "LoadMicroBatch":
            self.engine.pipe_buffers["inputs"][buffer_id] = self.loaded()
        if self.is_odd():
            raise ArithmeticError

    def move(self, name):
        move, stage = (self.module.p2p.send, 2) if name.startswith("Send") else (self.module.p2p.recv, 0)
        tensor = Tensor(self.random.randrange(1, 9))
        if self.is_odd():
            stage = self.random.choice([np.int64(2), 3, 77, "x", None, 2**40])
        if self.is_odd():
            tensor = self.random.choice([TensorOfOldTorch(), None])
        if self.is_odd():
            self.engine._send_tensor_meta(None, 2)
        form = self.random.choice(["keywords", "one", "more", "again"]) if self.is_odd() else "plain"
        if form == "keywords":
            key = "dest_stage" if name.startswith("Send") else "src_stage"
            move(**{"tensor": tensor, key: stage})
        elif form == "one":
            move(tensor, **{"dest_stage" if name.startswith("Send") else "src_stage": stage})
        elif form == "more":
            move(tensor, stage, False)
        else:
            with suppress(ConnectionError):
                move(tensor, stage)
            if form == "again":
                move(tensor, stage)

    def moved(self):
        """Do what the functions of p2p do."""
        self.interrupt()
        if self.is_odd():
            raise ConnectionError

    def loaded(self):
        data = Tensor(self.random.randrange(1, 9), self.random.choice(["int64"]))
        if not self.is_odd():
            return self.random.choice([data, (data, Tensor())])
        return self.random.choice([(), [data], {"input_ids": data}, None, 7, (None,), ((data,),)])


class TensorOfOldTorch:
    def numel(self):
        return 3

    def element_size(self):
        return 4


def quietly(function, *args, **kwargs):
    with suppress(ArithmeticError, ConnectionError, TypeError):
        function(*args, **kwargs)


LOAD = type("LoadMicroBatch", (), {})
NAMES = ["ForwardPass", "BackwardPass", *TRANSFERS, "LoadMicroBatch"]


def instructions_of(schedule, *, with_phase):
    """Return the functions of an engine's dict, by the class of the instruction."""

    def made(name):
        if with_phase and name != "LoadMicroBatch":

            def instruction(self, buffer_id, phase):
                del phase
                if name in TRANSFERS and schedule.random.random() < 0.9:
                    self._queue_p2p("isend", [Tensor(3)] * schedule.random.randrange(3), 2)
                schedule.run(name, buffer_id)
        else:

            def instruction(self, buffer_id):
                del self
                schedule.run(name, buffer_id)

        return instruction

    return {fake_deepspeed.INSTRUCTIONS.get(name) or LOAD: made(name) for name in NAMES}


def rank_of(stage_id):
    if stage_id == 77:
        raise ArithmeticError
    return "unknown" if stage_id == 3 else 10 + stage_id


def engines_of(schedule, recorder, patches, *, is_dualpipev):
    """Instrument modules whose instructions do what the schedule does, and return an engine and one of a subclass."""
    module = fake_deepspeed.make_engine(schedule, send=lambda *_: schedule.moved())

    def recv(tensor, src_stage, async_op=False):  # noqa: ARG001, FBT002  # DeepSpeed's signature
        schedule.moved()

    module.p2p.recv = recv
    module.p2p._grid.stage_to_global = rank_of
    parent = module.PipelineEngine
    parent._INSTRUCTION_MAP |= instructions_of(schedule, with_phase=False)
    parent._send_tensor_meta = lambda _, buffer, recv_stage: module.p2p.send(
        Tensor(100), recv_stage or buffer
    )
    deepspeed.instrument(module, recorder, patches)
    engine_class = parent
    if is_dualpipev:
        dualpipev = fake_deepspeed.make_dualpipev(module)
        engine_class = dualpipev.DualPipeVEngine
        engine_class._INSTRUCTION_MAP |= instructions_of(schedule, with_phase=True)
        deepspeed.instrument(dualpipev, recorder, patches)
    own = type("OwnEngine", (engine_class,), {"_INSTRUCTION_MAP": dict(engine_class._INSTRUCTION_MAP)})
    own._INSTRUCTION_MAP[fake_deepspeed.INSTRUCTIONS["SendGrad"]] = lambda *_, **__: None
    schedule.module = module
    return engine_class(), own()


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record what a schedule does, in Python or compiled, and return the numbers of errors, the rows of the spans, with
    whether each time is known, and those of the counters.
    """

    def record(schedule, *, is_compiled, is_dualpipev, clock):
        with monkeypatch.context() as patched:
            if clock == "device":
                simulated_gpu.use(patched, host=None)
            if not is_compiled:
                patched.setattr(compiled, "extension", lambda: None)
            patched.setattr(distributed_c10d, "Work", type("Work", (fake_deepspeed.Work,), {}))
            directory = tmp_path / ("compiled" if is_compiled else "python")
            schedule.recorder = recorder = Recorder(str(directory))
            patches = Patches()
            engines = engines_of(schedule, recorder, patches, is_dualpipev=is_dualpipev)
            for batch in range(BATCHES):
                schedule.engine = engine = engines[schedule.oddity > 0 and batch == 2]
                engine.pipe_buffers = {"inputs": [None] * BUFFERS}
                engine.stage_id = schedule.stage(batch % 2)
                if batch == 1:
                    engine.eval_batch(None)
                else:
                    engine.train_batch()
            errors = [guard.errors for guard in recorder.guards.values()]
            patches.undo()
            recorder.stop("test")
        contents = only_contents(directory)
        names = [contents.names.get(number, "") for number in contents.spans["name"].tolist()]
        spans = zip(names, trainings.spans_in(directory, *FIELDS, *TIMES), strict=True)
        rows = [(*row, name) for name, row in spans if "garbage" not in name]
        before = len(FIELDS) + 1
        spans = [(*row[:before], *(time != NONE for time in row[before:-1]), row[-1]) for row in rows]
        counters = contents.counters
        counted = counters[["step", "stage", "microbatch", "value"]][counters["microbatch"] != NONE]
        return errors, spans, sorted(counted.tolist())

    return record


def both(recorded, seed, oddity, *, is_dualpipev, clock):
    """Return what both ways record of the same schedule."""
    phases = {*NAMES} - {"LoadMicroBatch"} if is_dualpipev else ()
    names = [*NAMES, "CommitP2P"] if is_dualpipev else NAMES
    return [
        recorded(
            Schedule(seed, names, phases, oddity), is_compiled=way, is_dualpipev=is_dualpipev, clock=clock
        )
        for way in (False, True)
    ]


@pytest.mark.parametrize("is_dualpipev", [False, True])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("oddity", [0, 0.02, 0.1])
@pytest.mark.parametrize("clock", ["host", "device"])
def test_both_ways_record_the_same_of_any_calls(recorded, seed, oddity, is_dualpipev, clock):
    in_python, in_c = both(recorded, seed, oddity, is_dualpipev=is_dualpipev, clock=clock)
    assert in_python[0] == in_c[0]
    assert sorted(in_python[1]) == sorted(in_c[1])
    assert in_python[2] == in_c[2]


class Steps:
    """An engine that has recorded the first action of a step, and executes instructions by name."""

    def __init__(self, recorder, patches, **functions):
        self.module = fake_deepspeed.make_engine([("ForwardPass", 0)])
        instructions = self.module.PipelineEngine._INSTRUCTION_MAP
        for name, function in functions.items():
            instructions[fake_deepspeed.INSTRUCTIONS.get(name) or LOAD] = function
        deepspeed.instrument(self.module, recorder, patches)
        self.engine = self.module.PipelineEngine()
        self.guard = recorder.guards["DeepSpeed"]
        recorder.begin_step(0)
        self.call("ForwardPass")

    def call(self, name, **given):
        function = self.engine._INSTRUCTION_MAP[fake_deepspeed.INSTRUCTIONS.get(name) or LOAD]
        return types.MethodType(function, self.engine)(**{"buffer_id": 0} | given)


def test_nothing_is_kept_of_an_engine_and_its_tensors(recorder, patches):
    tensors = []

    def send(_, buffer_id):
        del buffer_id
        tensor = Tensor(3)
        tensors.append(weakref.ref(tensor))
        steps.module.p2p.send(tensor, 2)

    def load(self, buffer_id):
        self.pipe_buffers = {"inputs": [Tensor(5)]}
        tensors.append(weakref.ref(self.pipe_buffers["inputs"][buffer_id]))

    steps = Steps(recorder, patches, SendActivation=send, LoadMicroBatch=load)
    steps.engine.stage_id = 0
    steps.engine.train_batch()
    for _ in range(3):
        steps.call("SendActivation")
        steps.call("LoadMicroBatch")
        steps.call("ForwardPass")
    engine, count = weakref.ref(steps.engine), sys.getrefcount(steps.engine)
    for _ in range(100):
        steps.call("SendActivation")
        steps.call("LoadMicroBatch")
        steps.call("BackwardPass")
    later = sys.getrefcount(steps.engine)
    assert later == count
    del steps.engine
    gc.collect()
    assert engine() is None
    assert not any(tensor() for tensor in tensors)
    assert steps.guard.errors == 0


def test_an_exception_of_a_signal_handler_in_the_recorder_belongs_to_the_training(
    recorder, patches, tmp_path, monkeypatch
):
    error = TimeoutError("of the training")

    class Interrupting(Tensor):
        @property
        def nbytes(self):
            raise error

    def send(_, buffer_id):
        steps.module.p2p.send(Interrupting(buffer_id), 2)

    steps = Steps(recorder, patches, SendActivation=send)
    steps.call("SendActivation")  # no handler has raised it
    handlers = {Interrupting.nbytes.fget.__code__}
    monkeypatch.setattr("stagescope.record.signal_handlers._codes_of_signal_handlers", lambda: handlers)
    with pytest.raises(TimeoutError) as raised:
        steps.call("SendActivation")
    assert raised.value is error
    monkeypatch.undo()
    steps.call("SendActivation", buffer_id=3)
    recorder.stop("test")
    spans = trainings.spans_in(tmp_path, "microbatch", "peer", "bytes")
    assert [row for row in spans if row[0] == "send_forward"] == [
        ("send_forward", 0, 12, 0), ("send_forward", 2, 12, 6),
    ]  # fmt: skip


def test_numbers_that_are_no_numbers_are_left_to_python(recorder, patches, tmp_path):
    steps = Steps(recorder, patches)
    for stage in (2**40, "x", None, True):
        steps.engine.stage_id = stage
        steps.call("ForwardPass")
    del steps.module.PipelineEngine.stage_id, steps.engine.stage_id
    steps.call("ForwardPass")
    steps.module.PipelineEngine.stage_id = 3
    steps.call("ForwardPass")
    recorder.stop("test")
    spans = trainings.spans_in(tmp_path, "stage", "microbatch")
    assert spans == [("forward", 1, 0), ("forward", 1, 4), ("forward", NONE, NONE), ("forward", 3, 6)]


PAUSE_NS = 2_000_000


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["SendActivation", "RecvActivation"])
def test_a_transfer_waits_from_the_first_to_the_last_tensor(recorder, patches, tmp_path, name):
    """A send ends with its instruction, which may wait for the backend; a receive has ended when its data is there."""

    def transfer(_, buffer_id):
        pause()
        for _ in range(2):
            move = steps.module.p2p.send if name == "SendActivation" else steps.module.p2p.recv
            move(Tensor(3), buffer_id + 2)
            pause()

    steps = Steps(recorder, patches, **{name: transfer})
    steps.call(name)
    recorder.stop("test")
    *_, (_, start, wait_start, wait_end, end) = trainings.spans_in(
        tmp_path, "start_ns", "wait_start_ns", "wait_end_ns", "end_ns"
    )
    assert wait_start - start >= PAUSE_NS
    assert wait_end - wait_start >= PAUSE_NS
    if name == "SendActivation":
        assert end - wait_end >= PAUSE_NS
    else:
        assert end == wait_end


def pause():
    time.sleep(PAUSE_NS / 1e9)
