"""Pipelines that are written by hand: real loops of sends and receives, with marked actions and without."""

from __future__ import annotations

import json
import os
import re
import statistics

import polars as pl
import pytest

import stagescope
from places import DOCS
from process_groups import once
from scratch import scratch_directory
from stagescope.cli.run_summary import print_summary
from stagescope.record.launch import Ended, recording_environment
from stagescope.record.run_directory import recordings_in
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS
from trainings import RANKS, TESTS, run_ranks

EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENDED = Ended(0, None)


@once
def trained(*arguments):
    """Return where a script recorded, and what each rank logged."""
    directory = scratch_directory("hand-written") / "recording"
    inherited = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment = recording_environment(directory, steps=None, run="hand-written", inherited=inherited)
    done = run_ranks(list(arguments), environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, done.stdout.splitlines()


def loop(*arguments):
    directory, lines = trained(str(TESTS / "handwritten_training.py"), *arguments)
    logs = {rank: log for rank, log, _ in map(json.loads, lines)}
    return directory, {rank: [row for row in logs[rank] if row[0] in ACTION_KINDS] for rank in range(RANKS)}


def assert_transfers_are_placed(timeline, per_rank):
    transfers = timeline.spans.filter(pl.col("kind").is_in([*SENDS, *RECEIVES]))
    assert transfers.select("step", "stage", "microbatch", "peer").null_count().sum_horizontal().item() == 0
    counts = transfers.group_by("rank").len().sort("rank")["len"].to_list()
    assert counts == [per_rank, 2 * per_rank, 2 * per_rank, per_rank]
    assert not timeline.spans["kind"].is_in(["send", "recv"]).any()


def fraction_of_actions(spans, step):
    """Return the bubble of a step whose actions and optimizer are all that its ranks compute, one after another."""
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS), step=step)
    start_ns, end_ns = actions["start_ns"].min(), actions["end_ns"].max()
    computed = spans.filter(pl.col("kind").is_in([*ACTION_KINDS, "optimizer"]))
    inside_ns = computed["end_ns"].clip(start_ns, end_ns) - computed["start_ns"].clip(start_ns, end_ns)
    return 1 - inside_ns.sum() / (end_ns - start_ns) / RANKS


@pytest.mark.parametrize(
    ("schedule", "how", "marks"),
    [
        ("1f1b", "batch", "actions"),
        pytest.param("gpipe", "async", "steps", marks=pytest.mark.exhaustive),
        pytest.param("gpipe", "blocking", "actions", marks=pytest.mark.exhaustive),
        pytest.param("1f1b", "async", "actions", marks=pytest.mark.exhaustive),
    ],
)
def test_a_marked_loop_is_recorded_as_its_own_clock_shows(schedule, how, marks):
    directory, logs = loop(schedule, how, marks)
    timeline = stagescope.read(directory)
    offset_ns = timeline.clocks["offset_ns"][0]
    longer = []
    for rank, log in logs.items():
        actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS), rank=rank).rows(named=True)
        assert [(a["kind"], a["step"], a["stage"], a["microbatch"]) for a in actions] == [
            (*row[:4],) for row in log
        ]
        for action, (*_, start_ns, end_ns) in zip(actions, log, strict=True):
            assert action["start_ns"] <= start_ns + offset_ns < end_ns + offset_ns <= action["end_ns"]
            longer.append((action["end_ns"] - action["start_ns"]) / (end_ns - start_ns) - 1)
    assert statistics.median(longer) < 0.03  # some ranks are interrupted between the two readings of a clock
    assert_transfers_are_placed(timeline, 36)
    report = stagescope.analyze(timeline)
    for step, fraction in report.steps.select("step", "bubble_fraction").rows():
        assert fraction == pytest.approx(fraction_of_actions(timeline.spans, step))
    assert report.ledger["exposed_communication_ns"].null_count() == 0
    assert timeline.spans.filter(kind="optimizer").height == RANKS * 3
    codes = [] if marks == "steps" else ["steps.divided"]
    assert timeline.diagnostics["code"].to_list() == codes


def test_the_example_of_the_documentation_runs_and_is_completely_recorded(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(EXAMPLE.search((DOCS / "hand-written-pipelines.md").read_text("utf-8"))[1], "utf-8")
    directory, _ = trained(str(script))
    assert_transfers_are_placed(stagescope.read(directory), 24)
    print_summary(directory, recordings_in(directory), ENDED)
    stated = re.search(
        r"^```text\n.*?\n(  ranks.*?)^```$",
        DOCS.joinpath("hand-written-pipelines.md").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    printed = capsys.readouterr().err.splitlines()[1:]
    assert printed[:2] == stated[1].splitlines()[:2]
    assert len(printed) == 3


def test_a_loop_without_marks_is_recorded_as_transfers_and_explains_how_to_mark_it(capsys):
    directory, _ = loop("1f1b", "batch", "none")
    timeline = stagescope.read(directory)
    counts = timeline.spans.filter(pl.col("kind").is_in(["send", "recv"])).group_by("kind", "rank").len()
    assert sorted(counts.rows()) == sorted(
        (kind, rank, 18 if rank in (0, RANKS - 1) else 36)
        for kind in ("send", "recv")
        for rank in range(RANKS)
    )
    assert timeline.diagnostics["code"].to_list() == ["actions.unmarked"]
    print_summary(directory, recordings_in(directory), ENDED)
    printed = capsys.readouterr().err
    assert "  ranks 0 and 3: 0 actions, 36 transfers, 1 collective\n" in printed
    assert "  ranks 1-2: 0 actions, 72 transfers, 1 collective\n" in printed
    assert "with record.forward(microbatch=m, stage=s): ..." in printed
