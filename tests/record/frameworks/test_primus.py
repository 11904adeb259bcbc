"""Primus' zero-bubble runtime and PrimusPipe, with replacements that have their functions and queues."""

from __future__ import annotations

import polars as pl
import pytest

import fake_primus
from stagescope import api as workflow
from stagescope.record.frameworks import primus_pipe, primus_zero_bubble
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, Runs
from stagescope.record.hooks import Guard
from stagescope.record.patching import Patches
from stagescope.record.points import primus as points
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import ACTION_KINDS, label

RANKS, MICROBATCHES = 4, 8
SPLIT = ("zb-h1", "zb-v", "v-half")
WHOLE = ("1f1b", "1f1b-v", "interleaved")
ALGORITHMS = {"zero-bubble": "zb-h1", "v-half": "v-half", "1f1b": "1f1b", "1f1b-interleaved": "interleaved"}


def options_of(name):
    return {"chunks": 2} if name == "interleaved" else {}


def recorded(tmp_path, rank, modules, run):
    """Record `run` on one rank with Megatron's hooks in place as well, as they are in a training."""
    recorder, patches = Recorder(str(tmp_path)), Patches()
    recorder.describe(rank=rank, world_size=RANKS)
    observe_as_megatron(modules, recorder, patches)
    instrument = (primus_zero_bubble if points.RUNTIME in modules else primus_pipe).instrument
    trigger = points.RUNTIME if points.RUNTIME in modules else points.LAUNCHER
    instrument(modules[trigger], recorder, patches, modules)
    run(modules[trigger])
    patches.undo()
    recorder.stop("test")
    return recorder


def observe_as_megatron(modules, recorder, patches):
    runs, guard = Runs(recorder, "Megatron-core"), Guard(recorder, "Megatron-core")

    def observe(kind):
        def action(_):
            return runs.observe_action(kind, Place(99, 99, 99))

        return action

    for module in modules.values():
        for name, kind in (
            ("forward_step", FORWARD),
            ("backward_step", BACKWARD),
            ("combined_forward_backward_step", FORWARD),
        ):
            patches.observe(module, name, observe(kind), guard)


def order_of(timeline, rank, step):
    at = pl.col("step").is_null() if step is None else pl.col("step") == step
    spans = timeline.spans.filter((pl.col("rank") == rank) & at & pl.col("kind").is_in(ACTION_KINDS))
    order, pairs = [], {}
    for action in spans.sort("start_ns", maintain_order=True).iter_rows(named=True):
        text = label(action["kind"], action["stage"], action["microbatch"])
        if action["pair"] is not None and action["pair"] in pairs:
            order[pairs[action["pair"]]] += f"+{text}"
            continue
        pairs[action["pair"]] = len(order)
        order.append(text)
    return order


@pytest.mark.parametrize("name", [*SPLIT, *WHOLE])
def test_actions_of_the_zero_bubble_runtime_are_recorded_as_executed(tmp_path, name):
    done = {}

    def run(runtime):
        for _ in range(2):
            assert runtime.iteration().run() == ["loss"]
        runtime.iteration(forward_only=True).run()

    for rank in range(RANKS):
        modules = fake_primus.zero_bubble(name, rank, RANKS, MICROBATCHES, **options_of(name))
        recorded(tmp_path, rank, modules, run)
        done[rank] = modules[points.RUNTIME].done
    timeline = workflow.read(tmp_path)
    for rank in range(RANKS):
        evaluated = [text for text in done[rank] if text.startswith("F")]
        forwards = len(evaluated) // 3
        per_step = (len(done[rank]) - forwards) // 2
        assert order_of(timeline, rank, 0) == done[rank][:per_step]
        assert order_of(timeline, rank, 1) == done[rank][per_step : 2 * per_step]
        assert order_of(timeline, rank, None) == done[rank][2 * per_step :]
    kinds = set(timeline.spans["kind"].unique().to_list())
    assert ("backward_weight" in kinds) == ("backward_input" in kinds) == (name in SPLIT)
    assert timeline.ranks["pp"].to_list() == list(range(RANKS))


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actions_of_primuspipe_are_recorded_as_executed(tmp_path, algorithm, merges):
    done, name = {}, ALGORITHMS[algorithm]
    for rank in range(RANKS):
        modules = fake_primus.pipe(
            algorithm, name, rank, RANKS, MICROBATCHES, merges=merges, **options_of(name)
        )
        recorded(tmp_path, rank, modules, lambda launcher: [launcher.launch() for _ in range(2)])
        done[rank] = modules[points.LAUNCHER].done
    timeline = workflow.read(tmp_path)
    for rank in range(RANKS):
        per_step = len(done[rank]) // 2
        assert order_of(timeline, rank, 0) == done[rank][:per_step]
        assert order_of(timeline, rank, 1) == done[rank][per_step:]
    assert timeline.steps["step"].unique().sort().to_list() == [0, 1]


def test_pair_of_primuspipe_is_a_forward_and_the_input_half_of_a_backward(tmp_path):
    modules = fake_primus.pipe("zbv-formatted", "v-half", 1, RANKS, MICROBATCHES)

    actions = [("F", 0, 0), ("FB", (3, 0), (0, 0)), ("W", 0, 0)]
    recorded(tmp_path, 1, modules, lambda launcher: launcher.launch(actions))
    spans = workflow.read(tmp_path).spans.filter(pl.col("pair").is_not_null())
    assert sorted(spans.select("kind", "stage", "microbatch").rows()) == [
        ("backward_input", 1, 0),
        ("forward", 1, 3),
    ]


def test_transfers_of_primus_are_reported_as_missing(tmp_path):
    modules = fake_primus.zero_bubble("zb-h1", 0, RANKS, MICROBATCHES)
    recorder = recorded(tmp_path, 0, modules, lambda runtime: runtime.iteration().run())
    assert recorder.coverage.frameworks["Primus"]["missing"] == ["sends and receives of Primus' schedules"]


@pytest.mark.parametrize("what", ["sequence splits", "post-validation"])
def test_runs_that_cannot_be_recorded_are_named_and_have_no_actions(tmp_path, capsys, what):
    modules = fake_primus.zero_bubble("zb-h1", 0, RANKS, MICROBATCHES)

    def run(runtime):
        iteration = runtime.iteration(seq_split_idx=int(what == "sequence splits"))
        iteration.states.it = int(what == "post-validation")
        iteration.run()

    recorded(tmp_path, 0, modules, run)
    timeline = workflow.read(tmp_path)
    assert order_of(timeline, 0, 0) == []
    assert timeline.steps["step"].to_list() == [0]
    assert "Primus: the schedule zero-bubble runtime with" in capsys.readouterr().err
    assert "schedule.unrecorded" in timeline.diagnostics["code"].to_list()


@pytest.mark.parametrize("missing", ["TrainingIteration", "forward_step"])
def test_runtime_of_another_version_is_refused_and_left_alone(tmp_path, capsys, missing):
    modules = fake_primus.zero_bubble("zb-h1", 0, RANKS, MICROBATCHES)
    runtime = modules[points.RUNTIME]
    delattr(runtime, missing)
    before = dict(vars(runtime))
    recorder = Recorder(str(tmp_path))
    primus_zero_bubble.instrument(runtime, recorder, Patches(), modules)
    assert vars(runtime) == before
    assert "nothing of it is recorded" in capsys.readouterr().err
    recorder.stop("test")
