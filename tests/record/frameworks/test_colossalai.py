"""Schedules of old releases of ColossalAI, and what no training does, with a replacement that has the same names.

The schedules of 0.5.0 run in test_colossalai_runs.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest
from torch.distributed import distributed_c10d

import fake_colossalai
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record.frameworks import colossalai
from stagescope.record.patching import MARK, Patches
from stagescope.record.points.colossalai import P2P_MODULE, PIPELINE, TRIGGER
from stagescope.record.points.colossalai import ZERO_BUBBLE as ZERO_BUBBLE_PART
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS, label

NAMES = {
    "OneForwardOneBackwardSchedule": "1f1b",
    "InterleavedSchedule": "interleaved",
    "ZeroBubbleVPipeScheduler": "zb-v",
}
VERSIONS = [(version, name) for version in ("0.3.9", "0.4.6") for name in NAMES if NAMES[name] != "zb-v"]
of_all_schedules = pytest.mark.parametrize(("version", "name"), VERSIONS)
ZERO_BUBBLE = f"{TRIGGER}.zero_bubble_pp"


@pytest.fixture(autouse=True)
def works(monkeypatch):
    """The class of torch's handles, and no modules of earlier tests."""
    monkeypatch.setattr(distributed_c10d, "Work", fake_colossalai.Work)
    for name in fake_colossalai.make():
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    assert not hasattr(fake_colossalai.Work.wait, MARK)


@pytest.fixture
def instrument(monkeypatch, works):
    """Return a function that imports modules and instruments the package; the originals are restored afterwards."""
    del works
    installed = []

    def install(modules, recorder):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        patches = Patches()
        installed.append((patches, recorder))
        colossalai.instrument(modules[TRIGGER], recorder, patches)
        return patches

    yield install
    for patches, recorder in reversed(installed):
        patches.undo()
        recorder.stop("test")


@pytest.fixture
def train(tmp_path, instrument):
    """Return a function that records a training of one rank; it returns the timeline and the schedule."""

    def run(name, *, version="0.5.0", steps=2, stage=1, **options):
        modules = fake_colossalai.make(version)
        recorder = Recorder(str(tmp_path))
        patches = instrument(modules, recorder)
        schedule = getattr(modules[TRIGGER], name)(stage, 4, 8, **options)
        for _ in range(steps):
            schedule.forward_backward_step("model", None, None, optimizer="optimizer")
        if name == "OneForwardOneBackwardSchedule":
            schedule.forward_backward_step("model", None, None)
        patches.undo()
        recorder.stop("test")
        return workflow.read(tmp_path), schedule

    return run


def order_of(timeline, step):
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("step") == step)).sort(
        "start_ns"
    )
    return [
        label(action["kind"], action["stage"], action["microbatch"])
        for action in actions.iter_rows(named=True)
    ]


@of_all_schedules
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_recorded_order_is_the_executed_order(train, version, name, stage):
    timeline, schedule = train(name, version=version, stage=stage)
    half = sum(action != "None" for action in schedule.done) // 2
    done = schedule.done
    assert [order_of(timeline, 0), order_of(timeline, 1)] == [done[:half], done[half : 2 * half]]
    assert timeline.ranks["schedule"].to_list() == [NAMES[name]]
    assert timeline.ranks["pp"].to_list() == [stage]


def test_weight_gradients_of_zbv_are_recorded(train):
    """``schedule_w`` computes them; ``backward_w_step`` exists and is not called."""
    timeline, _ = train("ZeroBubbleVPipeScheduler", steps=1)
    found = timeline.spans.filter(pl.col("kind") == "backward_weight").sort("stage", "microbatch")
    assert found.select("stage", "microbatch").rows() == [(s, m) for s in (1, 6) for m in range(8)]


def test_evaluation_belongs_to_no_step(train):
    timeline, _ = train("OneForwardOneBackwardSchedule")
    assert timeline.steps["step"].to_list() == [0, 1]
    evaluated = timeline.spans.filter(pl.col("step").is_null())
    for kind in ("forward", "recv_forward", "send_forward"):
        chosen = evaluated.filter(pl.col("kind") == kind)
        assert chosen["microbatch"].to_list() == list(range(8))


def expected_transfers(name, rank):
    """Return kind, stage and peer of each transfer of one micro-batch: none where two stages share a rank."""
    chunks = 1 if NAMES[name] == "1f1b" else 2
    last, is_v = 4 * chunks - 1, NAMES[name] == "zb-v"
    stages = [rank + 4 * chunk if not (is_v and chunk) else 7 - rank for chunk in range(chunks)]

    def rank_of(stage):
        return 7 - stage if is_v and stage > 3 else stage % 4

    found = []
    for stage in stages:
        for neighbor, kinds in (
            (stage - 1, ("recv_forward", "send_backward")),
            (stage + 1, ("send_forward", "recv_backward")),
        ):
            if 0 <= neighbor <= last and rank_of(neighbor) != rank:
                found += [(kind, stage, rank_of(neighbor)) for kind in kinds]
    return found


@of_all_schedules
@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("overlap", [True, False])
def test_every_transfer_is_recorded_once_with_the_place_of_its_pass(train, version, name, stage, overlap):
    options = {} if NAMES[name] == "1f1b" else {"overlap": overlap}
    timeline, _ = train(name, version=version, stage=stage, steps=1, **options)
    transfers = timeline.spans.filter(pl.col("kind").is_in(TRANSFERS) & (pl.col("step") == 0))
    found = transfers.select(pl.col("kind").cast(pl.String), "stage", "peer", "microbatch").rows()
    expected = [(*one, microbatch) for one in expected_transfers(name, stage) for microbatch in range(8)]
    assert sorted(found) == sorted(expected)
    assert transfers["bytes"].unique().to_list() == [10]


@of_all_schedules
@pytest.mark.parametrize("overlap", [True, False])
def test_receives_end_with_their_wait_before_the_data_is_used(train, version, name, overlap):
    options = {} if NAMES[name] == "1f1b" else {"overlap": overlap}
    timeline, _ = train(name, version=version, steps=1, **options)
    receives = timeline.spans.filter(pl.col("kind").cast(pl.String).str.starts_with("recv"))
    assert (receives["wait_end_ns"] == receives["end_ns"]).all()
    assert receives["wait_end_ns"].null_count() == 0
    kind = pl.col("kind").cast(pl.String)
    passes = timeline.spans.filter(pl.col("lane") == "compute").select(
        "step", "stage", "microbatch", is_forward=kind == "forward", used_ns="start_ns", used_by=kind
    )
    used = receives.with_columns(is_forward=kind == "recv_forward").join(
        passes.filter(pl.col("used_by") != "backward_weight"),
        on=["step", "stage", "microbatch", "is_forward"],
        nulls_equal=True,
    )
    assert used.height == receives.height
    assert (used["end_ns"] <= used["used_ns"]).all()


@pytest.mark.parametrize("is_send", [False, True])
@pytest.mark.parametrize("is_recv", [False, True])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_combined_call_is_recorded_as_what_its_flags_state(tmp_path, instrument, is_send, is_recv, direction):
    modules = fake_colossalai.make()

    class Schedule(modules[TRIGGER].InterleavedSchedule):
        def order(self):
            call = getattr(self.comm, f"send_{direction}_recv_{direction}")
            call(fake_colossalai.value(), is_send, is_recv, send_first=False)
            raise StopIteration

    recorder = Recorder(str(tmp_path))
    instrument(modules, recorder)
    with pytest.raises(StopIteration):
        Schedule(1, 4, 8).forward_backward_step("model", None, None, optimizer="optimizer")
    recorder.stop("test")
    has_messages = any(tmp_path.rglob("*.sscope"))
    found = workflow.read(tmp_path).spans["kind"].to_list() if has_messages else []
    assert found == [f"send_{direction}"] * is_send + [f"recv_{direction}"] * is_recv


@pytest.mark.parametrize("part", [PIPELINE, ZERO_BUBBLE_PART], ids=lambda part: part.framework)
def test_version_without_a_required_function_is_left_alone_and_named(tmp_path, instrument, capsys, part):
    for point in part.points:
        if not point.required:
            continue
        modules = fake_colossalai.make()
        module, _, owner = point.owner.partition(":")
        delattr(getattr(modules[module], owner), point.name)
        recorder = Recorder(str(tmp_path))
        instrument(modules, recorder)
        assert f"`{point.path}` not found" in capsys.readouterr().err
        owners = {
            id(one): one
            for one in (getattr(modules[p.module], p.owner.partition(":")[2]) for p in part.points)
        }
        assert not [n for one in owners.values() for n, value in vars(one).items() if hasattr(value, MARK)]
        assert not recorder.coverage.frameworks[part.framework]["recorded"]


def test_version_without_zbv_lacks_nothing(train):
    timeline, _ = train("InterleavedSchedule", version="0.4.6", steps=1)
    assert timeline.diagnostics.rows() == []


def test_unknown_schedules_and_transfers_are_named(tmp_path, instrument, capsys):
    modules = fake_colossalai.make()
    modules[P2P_MODULE].PipelineP2PCommunication.send_forward_recv_all = lambda self: None
    recorder = Recorder(str(tmp_path))
    instrument(modules, recorder)

    class OwnSchedule(modules[f"{TRIGGER}.base"].PipelineSchedule):
        def forward_backward_step(self, model):
            return model

    class Derived(modules[TRIGGER].InterleavedSchedule):
        pass

    for schedule in (OwnSchedule, Derived, modules[f"{TRIGGER}.generate"].GenerateSchedule):
        schedule(0, 4, 8)
    assert recorder.coverage.frameworks["ColossalAI"]["missing"] == ["messages of `send_forward_recv_all`"]
    printed = capsys.readouterr().err
    for name in ("OwnSchedule", "GenerateSchedule"):
        reason = "this schedule is not known; nothing of it is recorded"
        assert printed.count(f"ColossalAI {name} (unknown version): {reason}") == 1
    assert "Derived" not in printed


def test_step_without_an_action_is_reported(tmp_path, instrument, capsys):
    modules = fake_colossalai.make()
    recorder = Recorder(str(tmp_path))
    modules[TRIGGER].InterleavedSchedule.forward_backward_step = lambda self, model, optimizer=None: None
    instrument(modules, recorder)
    modules[TRIGGER].InterleavedSchedule(0, 4, 8).forward_backward_step("model", optimizer="optimizer")
    assert "ColossalAI: step 0 ended without a recorded action" in capsys.readouterr().err


def test_header_describes_the_schedule(tmp_path, train):
    train("ZeroBubbleVPipeScheduler", steps=1, stage=1)
    (file,) = Path(tmp_path).rglob("*.sscope")
    header = read_contents(file.read_bytes()).header
    assert header["parallel"] == {"pp": 1, "pp_size": 4}
    assert header["schedule"] == {
        "name": "zb-v", "class": "ZeroBubbleVPipeScheduler", "microbatches": 8, "stages": 8, "local_stages": [1, 6],
    }  # fmt: skip


def test_stop_restores_the_classes(tmp_path, instrument):
    modules = fake_colossalai.make()
    before = dict(vars(modules[TRIGGER].ZeroBubbleVPipeScheduler))
    patches = instrument(modules, Recorder(str(tmp_path)))
    assert dict(vars(modules[TRIGGER].ZeroBubbleVPipeScheduler)) != before
    patches.undo()
    assert dict(vars(modules[TRIGGER].ZeroBubbleVPipeScheduler)) == before
