"""MindSpeed's DualPipeV, with a replacement that has its functions and queues, as these tests have no NPU."""

from __future__ import annotations

import sys
import types
from collections import Counter

import polars as pl
import pytest

import fake_mindspeed
from stagescope import api as workflow
from stagescope import schedules
from stagescope.record.frameworks import mindspeed
from stagescope.record.frameworks.runs import BACKWARD, Place, Runs
from stagescope.record.hooks import Guard
from stagescope.record.patching import Patches
from stagescope.record.points import mindspeed as points
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import ACTION_KINDS, label

NAMES = [points.MODULE_OF_MINDSPEED, points.MODULE_OF_FLAGSCALE]
SHAPES = [(2, 4), (2, 6), (4, 8), (4, 11)]


def instrument(module, recorder, patches):
    mindspeed.instrument(module, recorder, patches, fake_mindspeed.modules_of(module))


def train(directory, shape, *, steps=2, **options):
    """Record every rank of a pipeline one after the other; return the timeline and the executed actions."""
    ranks, microbatches = shape
    done = {}
    for rank in range(ranks):
        module = fake_mindspeed.make(rank, ranks, microbatches=microbatches, **options)
        recorder, patches = Recorder(str(directory)), Patches()
        recorder.describe(rank=rank, world_size=ranks)
        instrument(module, recorder, patches)
        for _ in range(steps):
            run(module, microbatches)
        run(module, microbatches, forward_only=True)
        patches.undo()
        recorder.stop("test")
        done[rank] = module.done
    return workflow.read(directory), done


def run(module, microbatches, **more):
    given = {
        "forward_step_func": None,
        "data_iterator": None,
        "model": None,
        "seq_length": 1,
        "micro_batch_size": 1,
    }
    return fake_mindspeed.entry_of(module)(**given, num_microbatches=microbatches, **more)


def spans_of(timeline, rank, step):
    at = pl.col("step").is_null() if step is None else pl.col("step") == step
    return timeline.spans.filter((pl.col("rank") == rank) & at).sort("start_ns")


def order_of(timeline, rank, step):
    order, pairs = [], {}
    kinds = pl.col("kind").is_in([*ACTION_KINDS, "loss"])
    for action in spans_of(timeline, rank, step).filter(kinds).iter_rows(named=True):
        text = action["name"] or label(action["kind"], action["stage"], action["microbatch"])
        text = "logits" if action["kind"] == "loss" else text
        if action["pair"] in pairs and action["pair"] is not None:
            order[pairs[action["pair"]]] += f"+{text}"
            continue
        pairs[action["pair"]] = len(order)
        order.append(text)
    return order


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("split_cooldown", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_recorded_order_is_the_executed_order_of_dualpipev(tmp_path, shape, split_cooldown, is_old):
    timeline, done = train(tmp_path, shape, split_cooldown=split_cooldown, is_old=is_old)
    expected = schedules.order(
        "dualpipev", ranks=shape[0], microbatches=shape[1], split_cooldown=split_cooldown
    )
    for rank in range(shape[0]):
        recorded = [order_of(timeline, rank, step) for step in (0, 1)]
        per_step = (len(done[rank]) - 2 * shape[1]) // 2
        assert recorded == [done[rank][:per_step], done[rank][per_step : 2 * per_step]]
        without_logits = [text for text in recorded[1] if text != "logits"]
        assert without_logits == [str(action) for action in expected[rank]]


def test_logits_precede_every_backward_of_the_last_stage(tmp_path):
    timeline, _ = train(tmp_path, (2, 6))
    logits = spans_of(timeline, 0, 1).filter(pl.col("kind") == "loss")
    assert logits["microbatch"].to_list() == list(range(6))
    assert logits["stage"].unique().to_list() == [3]
    assert spans_of(timeline, 1, 1).filter(pl.col("kind") == "loss").is_empty()


@pytest.mark.parametrize("split_cooldown", [True, False])
def test_pop_of_an_empty_cache_is_no_action(tmp_path, split_cooldown):
    timeline, _ = train(tmp_path, (2, 4), split_cooldown=split_cooldown, empty_pops=3)
    expected = schedules.order("dualpipev", ranks=2, microbatches=4, split_cooldown=split_cooldown)
    for rank in range(2):
        weights = spans_of(timeline, rank, 0).filter(pl.col("kind") == "backward_weight")
        assert weights.height == sum(action.kind == "W" for action in expected[rank])
        assert weights["microbatch"].null_count() == 0


def test_evaluation_belongs_to_no_step(tmp_path):
    timeline, _ = train(tmp_path, (2, 4))
    assert timeline.steps["step"].unique().to_list() == [0, 1]
    evaluated = spans_of(timeline, 0, None).filter(pl.col("lane") == "compute")
    assert evaluated["kind"].unique().to_list() == ["forward"]
    assert evaluated.height == 8


def test_header_contains_the_coordinates_of_the_rank(tmp_path):
    timeline, _ = train(tmp_path, (2, 4))
    assert timeline.ranks["schedule"].unique().to_list() == ["dualpipev"]
    assert timeline.ranks.select("pp", "dp").rows() == [(0, 1), (1, 1)]


def test_transfers_have_direction_peer_and_pass(tmp_path):
    timeline, _ = train(tmp_path, (4, 8), steps=1)
    spans = spans_of(timeline, 1, 0)
    sends = spans.filter(pl.col("kind") == "send_forward")
    by_chunk = Counter(sends.select("chunk", "peer").iter_rows())
    assert by_chunk == {(0, 2): 8, (1, 0): 8}
    assert sends.filter(pl.col("chunk") == 1)["microbatch"].to_list() == list(range(8))
    receives = spans.filter(pl.col("kind") == "recv_forward")
    assert Counter(receives.select("chunk", "peer").iter_rows()) == {(0, 0): 8, (1, 2): 8}
    gradients = spans.filter(pl.col("kind") == "send_backward")
    assert gradients["stage"].null_count() == 0
    assert spans["bytes"].drop_nulls().unique().to_list() == [24]


def test_stop_restores_the_module(tmp_path):
    module = fake_mindspeed.make(0, 2, microbatches=4)
    before = {**vars(module)}, vars(module.WeightGradStore)["pop"]
    patches = Patches()
    instrument(module, Recorder(str(tmp_path)), patches)
    assert vars(module)["forward_step_with_model_graph"] is not before[0]["forward_step_with_model_graph"]
    patches.undo()
    assert vars(module) == before[0]
    assert vars(module.WeightGradStore)["pop"] is before[1]


def test_model_without_graphs_is_identified_by_tensors(tmp_path):
    module = fake_mindspeed.make(0, 2, microbatches=4)
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, Patches())

    def schedule():
        outputs = [
            module.forward_step_no_model_graph(
                *[None, 0, None, None, 4, None, [], None], current_microbatch=number
            )[0]
            for number in range(2)
        ]
        for output in outputs:
            module.backward_step(None, output, None, None, None)

    recorder.begin_step()
    schedule()
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans.sort("start_ns")
    assert spans["kind"].to_list() == ["forward", "forward", "backward", "backward"]
    assert spans["microbatch"].to_list()[2:] == spans["microbatch"].to_list()[:2]


class FakeNpu:
    """The parts of torch_npu that marks and its profiler use."""

    def __init__(self):
        self.marks, self.open = [], []
        self.mstx = types.SimpleNamespace(range_start=self.start, range_end=self.end)

    def current_stream(self):
        return "the stream"

    def start(self, text, stream):
        assert stream == "the stream"
        self.open.append(text)
        return len(self.open)

    def end(self, number):
        self.marks.append(self.open.pop())
        assert number == len(self.open) + 1


@pytest.fixture
def npu(monkeypatch):
    npu = FakeNpu()

    class profile:  # noqa: N801  # torch_npu's name
        def __init__(self):
            self.metadata = {}

        def start(self):
            self.began = True

        def stop(self):
            self.began = False

        def add_metadata_json(self, key, value):
            assert self.began
            self.metadata[key] = value

    profilers = types.ModuleType("torch_npu.profiler.profiler")
    profilers.profile = profile
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    monkeypatch.setitem(sys.modules, "torch_npu.profiler.profiler", profilers)
    npu.profile = profile
    return npu


def test_actions_are_marked_as_in_ascends_guide_while_profiling(tmp_path, npu):
    module = fake_mindspeed.make(0, 2, microbatches=4)
    patches = Patches()
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, patches)
    run(module, 4)
    assert npu.marks == []
    profiler = npu.profile()
    profiler.start()
    begun = len(module.done)
    run(module, 4)
    profiler.stop()
    marked = module.done[begun:]
    run(module, 4)
    patches.undo()
    recorder.stop("test")
    assert len(npu.marks) == len(marked)
    names = {"F": "forward_step_with_model_graph", "W": "WeightGradStore.pop"}
    for text, mark in zip(marked, npu.marks, strict=True):
        name = (
            "forward_backward_overlaping"
            if "+" in text
            else names.get(text[0], "backward_step_with_model_graph")
        )
        number_given = {}
        if text[0] == "F":
            stage, number = map(int, text[1:].split("+")[0].split("."))
            number_given = {"current_microbatch": number + (4 if stage >= 2 else 0)}
        assert mark == str({"name": name, **number_given})


def test_running_profiler_gets_missing_metadata(tmp_path, npu):
    module = fake_mindspeed.make(1, 2, microbatches=4)
    patches = Patches()
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, patches)
    early, own = npu.profile(), npu.profile()
    early.start()
    run(module, 4)
    early.stop()
    own.metadata["pp_info"] = "the user's"
    own.start()
    own.stop()
    patches.undo()
    recorder.stop("test")
    assert early.metadata["pp_info"] == '{"pp_type": "dualpipev", "microbatch_num": 4}'
    assert '"pipeline_model_parallel_size": 2' in early.metadata["distributed_args"]
    assert own.metadata["pp_info"] == "the user's"
    assert "distributed_args" in own.metadata


def test_manually_marked_module_is_not_marked_twice(tmp_path, npu):
    module = fake_mindspeed.make(0, 2, microbatches=4)
    module.step_wrapper = lambda function, message: function
    patches = Patches()
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, patches)
    profiler = npu.profile()
    profiler.start()
    run(module, 4)
    patches.undo()
    recorder.stop("test")
    assert npu.marks == []


def test_training_exception_propagates(tmp_path):
    module = fake_mindspeed.make(0, 2, microbatches=4)

    def fail(*_args, **_kwargs):
        raise ZeroDivisionError("mine")

    module.backward_step_with_model_graph = fail
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, Patches())
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(module, 4)
    recorder.stop("test")
    assert workflow.read(tmp_path).steps.is_empty()


@pytest.mark.parametrize("name", NAMES)
def test_megatrons_hooks_do_not_record_the_same_backward(tmp_path, name):
    """Megatron's function is observed when it is imported, which is before MindSpeed is imported."""
    module = fake_mindspeed.make(0, 2, microbatches=4, has_graphs=False, name=name)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    megatrons = Runs(recorder, "Megatron-core")

    def backward(call):
        del call
        return (yield from megatrons.observe_action(BACKWARD, Place()))

    patches.observe(module, "backward_step", backward, Guard(recorder, "Megatron-core"))
    instrument(module, recorder, patches)
    run(module, 4)
    patches.undo()
    recorder.stop("test")
    assert order_of(workflow.read(tmp_path), 0, 0) == module.done


@pytest.mark.parametrize("shape", SHAPES)
def test_recorded_order_of_flagscales_copy_is_the_executed_order(tmp_path, shape):
    timeline, done = train(tmp_path, shape, name=points.MODULE_OF_FLAGSCALE)
    for rank in range(shape[0]):
        per_step = (len(done[rank]) - 2 * shape[1]) // 2
        assert order_of(timeline, rank, 1) == done[rank][per_step : 2 * per_step]
    assert "backward_weight" not in timeline.spans["kind"].unique().to_list()
    assert timeline.ranks["schedule"].unique().to_list() == ["dualpipev"]


@pytest.mark.parametrize("name", NAMES)
def test_model_without_graphs_is_recorded_as_executed(tmp_path, name):
    timeline, done = train(tmp_path, (4, 8), has_graphs=False, name=name, split_cooldown=False)
    for rank in range(4):
        per_step = (len(done[rank]) - 2 * 8) // 2
        assert order_of(timeline, rank, 1) == done[rank][per_step : 2 * per_step]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("missing", "faults"),
    [
        ("forward_step_no_model_graph", ["`MODULE:forward_step_no_model_graph` not found"]),
        ("backward_step", ["`MODULE:backward_step` not found"]),
    ],
)
def test_version_without_a_required_function_is_refused_and_left_alone(
    tmp_path, capsys, name, missing, faults
):
    module = fake_mindspeed.make(0, 2, microbatches=4, name=name)
    delattr(module, missing)
    before = {**vars(module)}
    recorder = Recorder(str(tmp_path))
    instrument(module, recorder, Patches())
    assert vars(module) == before
    (facts,) = recorder.coverage.frameworks.values()
    assert not facts["recorded"]
    assert facts["missing"] == [text.replace("MODULE", name) for text in faults]
    assert "nothing of it is recorded" in capsys.readouterr().err
    recorder.stop("test")


def test_renamed_transfer_is_reported_and_its_messages_are_not_guessed(tmp_path):
    module = fake_mindspeed.make(1, 4, microbatches=8)
    module.send_ahead = module.send_forward
    del module.send_forward
    recorder, patches = Recorder(str(tmp_path)), Patches()
    instrument(module, recorder, patches)
    module.send_forward = module.send_ahead
    run(module, 8)
    patches.undo()
    recorder.stop("test")
    assert "sends and receives" in recorder.coverage.frameworks["MindSpeed"]["missing"]
    kinds = workflow.read(tmp_path).spans["kind"].cast(pl.String).value_counts()
    assert "send_forward" not in kinds["kind"].to_list()
