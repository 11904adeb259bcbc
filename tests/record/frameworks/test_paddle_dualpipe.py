"""DualPipeV of Paddle fleet: a replacement of each version, one rank at a time."""

from __future__ import annotations

import polars as pl
import pytest

import fake_paddle
import fake_paddle_dualpipe
from children import only_contents
from stagescope import api as workflow
from stagescope.record.frameworks import paddle_dualpipe, paddle_fleet
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import ACTION_KINDS

RANKS, MICROBATCHES = 3, 7


@pytest.fixture(autouse=True)
def paddle(monkeypatch):
    with fake_paddle.installed(monkeypatch) as module:
        yield module


def record(directory, version, rank, **options):
    """Record one step of a rank; return the scheduler and the timeline."""
    module = fake_paddle_dualpipe.make(version)
    recorder, patches = Recorder(str(directory)), Patches()
    paddle_dualpipe.instrument(module, recorder, patches)
    pipeline = module.DualPipeVParallel(rank, RANKS, MICROBATCHES, **options)
    assert pipeline.train_batch([], None) == "loss"
    patches.undo()
    recorder.stop("test")
    return pipeline, workflow.read(directory)


def stage_of(rank, phase):
    return rank if phase == 0 else 2 * RANKS - 1 - rank


def places_in(spans):
    return spans.sort("start_ns", "kind").select("kind", "stage", "microbatch", "chunk").rows()


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("version", fake_paddle_dualpipe.VERSIONS)
def test_every_action_has_its_stage_of_the_v_and_its_microbatch(tmp_path, version, rank):
    pipeline, timeline = record(tmp_path, version, rank)
    executed = [(kind, stage_of(rank, phase), number, phase) for kind, phase, number in pipeline.done]
    assert places_in(timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))) == executed
    kinds = [kind for kind, *_ in executed]
    assert (
        kinds.count("forward") == kinds.count("backward") + kinds.count("backward_input") == 2 * MICROBATCHES
    )
    assert kinds.count("backward_weight") == kinds.count("backward_input") > 0
    assert timeline.ranks["schedule"].to_list() == ["dualpipev"]
    assert timeline.steps["step"].to_list() == [0]


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("version", fake_paddle_dualpipe.VERSIONS)
def test_every_transfer_has_its_place_its_peer_and_the_time_of_its_batch(tmp_path, version, rank):
    pipeline, timeline = record(tmp_path, version, rank)
    transfers = timeline.spans.filter(pl.col("peer").is_not_null())
    expected = [
        (kind, stage_of(rank, phase), number, phase)
        for batch in pipeline.moved
        for kind, phase, number in batch
    ]
    assert sorted(places_in(transfers)) == sorted(expected)
    assert transfers["bytes"].unique().to_list() == [64]
    assert transfers.select("start_ns", "end_ns").n_unique() == len(pipeline.moved)
    for kind, chunk, peer in transfers.select("kind", "chunk", "peer").unique().rows():
        goes_on = (chunk == 0) == (kind in {"send_forward", "recv_backward"})
        assert peer == (rank + 1 if goes_on else rank - 1)
    received = transfers.filter(pl.col("kind").cast(pl.String).str.starts_with("recv"))
    assert (received["wait_end_ns"] == received["end_ns"]).all()


@pytest.mark.parametrize("version", fake_paddle_dualpipe.VERSIONS)
def test_overlapped_passes_are_a_pair_with_the_weight_gradients_inside(tmp_path, version):
    pipeline, timeline = record(tmp_path, version, rank=1, overlapped=True)
    executed = [one for one in pipeline.done if one[0] == "pair"]
    pairs = timeline.spans.filter(pl.col("pair").is_not_null()).sort("pair", "kind")
    found = {
        number: dict(zip(spans["kind"], spans.select("chunk", "microbatch").rows(), strict=True))
        for (number,), spans in pairs.group_by("pair", maintain_order=True)
    }
    assert [(pair["forward"], pair["backward"]) for pair in found.values()] == [
        (forward, backward) for _, forward, backward in executed
    ]
    weights = timeline.spans.filter(pl.col("kind") == "backward_weight")
    assert places_in(weights) == [
        (kind, stage_of(1, phase), number, phase)
        for kind, phase, number in (one for one in pipeline.done if one[0] == "backward_weight")
    ]


def test_backward_of_a_model_that_splits_nothing_is_a_full_one(tmp_path):
    _, timeline = record(tmp_path, "3.3.1", rank=1, splits=False)
    kinds = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))["kind"].cast(pl.String)
    assert sorted(kinds.unique()) == ["backward", "forward"]


def test_only_forwards_are_an_evaluation(tmp_path):
    module = fake_paddle_dualpipe.make()
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_dualpipe.instrument(module, recorder, patches)
    pipeline = module.DualPipeVParallel(0, RANKS, MICROBATCHES)
    pipeline._weight_pass = lambda: None
    pipeline.forward_backward_pipeline([], None, forward_only=True)
    patches.undo()
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    assert timeline.steps.is_empty()
    assert timeline.spans["kind"].cast(pl.String).unique().sort().to_list() == [
        "forward",
        "recv_forward",
        "send_forward",
    ]


def test_hooks_of_the_other_pipelines_leave_it_alone(tmp_path):
    pipelines = fake_paddle.make()
    module = fake_paddle_dualpipe.make(base=pipelines.PipelineParallel)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    paddle_dualpipe.instrument(module, recorder, patches)
    for _ in range(2):
        module.DualPipeVParallel(0, RANKS, MICROBATCHES).train_batch([], None)
    patches.undo()
    recorder.stop("test")
    header = only_contents(tmp_path).header
    assert header["schedule"]["name"] == "dualpipev"
    assert not any("empty_steps" in entry for entry in header["frameworks"].values())


def test_version_without_a_required_function_is_refused(tmp_path, capsys):
    module = fake_paddle_dualpipe.make()
    del module.DualPipeVParallel._backward_compute
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_dualpipe.instrument(module, recorder, patches)
    assert not hasattr(module.DualPipeVParallel.train_batch, "__stagescope_original__")
    recorder.stop("test")
    entry = only_contents(tmp_path).header["frameworks"]["Paddle fleet DualPipeV"]
    assert (entry["recorded"], entry["supported"]) == (False, "3.1.0-3.3.1")
    assert "`_backward_compute`" in capsys.readouterr().err.replace("DualPipeVParallel.", "`")
