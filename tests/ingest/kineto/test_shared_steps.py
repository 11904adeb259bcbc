"""Completing the steps of ranks from the other ranks."""

import json

import polars as pl
import pytest

import stagescope
from ingest.kineto.planted_traces import backward_operator, flow, mark, operator, write_trace
from stagescope.schedules import order
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import label

RANKS, MICROBATCHES, STEPS = 3, 4, 3
GROUP = tuple(range(RANKS))


def action_of(rank, action, since_us):
    """Return the events of an action of 1 ms: its receive, its operators, its send."""
    upward, downward = rank > 0, rank < RANKS - 1
    receives, sends = (upward, downward) if action.kind == "F" else (downward, upward)
    make = (lambda *span: operator("aten::mm", *span)) if action.kind == "F" else backward_operator
    return [
        *(
            [mark("gloo:recv", since_us, since_us + 10), operator("c10d::recv_", since_us, since_us + 5)]
            * receives
        ),
        make(since_us + 20, since_us + 1000),
        *(
            [
                mark("gloo:send", since_us + 1005, since_us + 1015),
                operator("c10d::send", since_us + 1003, since_us + 1012),
            ]
            * sends
        ),
    ]


def events_of(rank, *, optimizer=False):
    """Return the events of a 1F1B rank: three steps of four micro-batches."""
    events, begun_us, at_us = [], {}, 1000 * rank
    for step in range(STEPS):
        for action in order("1f1b", ranks=RANKS, microbatches=MICROBATCHES)[rank]:
            events += action_of(rank, action, at_us)
            number, middle_us = 100 * step + action.microbatch, at_us + 500
            if action.kind == "F":
                begun_us[number] = middle_us
            else:
                events += flow(number, begun_us[number], middle_us)
            at_us += 1100
        if optimizer:
            events.append(mark("Optimizer.step#SGD.step", at_us, at_us + 50))
            at_us += 50
    return events


@pytest.fixture
def write(tmp_path):
    def write_ranks(ranks=GROUP, keep=lambda _: True, **options):
        for rank in ranks:
            kept = [event for event in events_of(rank, **options) if keep(event)]
            write_trace(tmp_path / f"rank{rank}.json", kept, rank=rank, ranks=GROUP)
        return tmp_path

    return write_ranks


def labels(timeline, step, rank):
    own = timeline.spans.filter((pl.col("step") == step) & (pl.col("rank") == rank)).sort("start_ns")
    actions = own.filter(pl.col("kind").is_in(["forward", "backward"]))
    return [label(*action) for action in actions.select("kind", "stage", "microbatch").iter_rows()]


def messages(timeline):
    return timeline.diagnostics["message"].to_list()


@pytest.mark.parametrize("optimizer", [False, True])
def test_steps_end_with_optimizers_or_when_all_backwards_have_run(write, optimizer):
    timeline = stagescope.read(write(optimizer=optimizer), align=False)
    expected = order("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    for step in range(STEPS):
        for rank in GROUP:
            assert labels(timeline, step, rank) == [str(action) for action in expected[rank]]
    assert set(timeline.spans["step"]) == set(range(STEPS))


def test_the_last_rank_alone_shows_each_microbatch_as_a_step_with_a_warning(write):
    timeline = stagescope.read(write(ranks=[RANKS - 1]), align=False)
    assert timeline.spans["step"].n_unique() == STEPS * MICROBATCHES
    assert "steps.unknown" in timeline.diagnostics["code"].to_list()


def is_no_operator(event):
    return event["cat"] == "user_annotation" or event["name"].startswith("c10d::")


def test_steps_from_transfers_alone_are_dropped_if_another_rank_contradicts_them(write):
    with pytest.raises(InputError, match="transfers match no complete step of 1F1B between two marks"):
        stagescope.read(write(keep=is_no_operator), align=False)


@pytest.fixture
def unplaced(write):
    """Write traces with transfers alone, without world size and process groups."""

    def write_unplaced(ranks=GROUP):
        folder = write(ranks, keep=is_no_operator, optimizer=True)
        for path in folder.glob("*.json"):
            trace = json.loads(path.read_bytes())
            del trace["distributedInfo"]
            path.write_text(json.dumps(trace))
        return folder

    return write_unplaced


def test_the_files_of_all_ranks_are_the_pipeline_if_nothing_states_it(unplaced):
    timeline = stagescope.read(unplaced(), align=False)
    expected = order("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    assert [labels(timeline, 1, rank) for rank in GROUP] == [
        [str(action) for action in expected[rank]] for rank in GROUP
    ]
    assert any("on as many ranks as there are traces" in message for message in messages(timeline))


@pytest.mark.parametrize("microbatches", [2, 4])
def test_a_rank_is_not_taken_for_the_last_one_if_others_contradict_it(unplaced, monkeypatch, microbatches):
    """With two micro-batches the first rank fits, too, but the one after it seems to have four."""
    monkeypatch.setattr(f"{__name__}.MICROBATCHES", microbatches)
    with pytest.raises(InputError, match="on as many ranks as there are traces"):
        stagescope.read(unplaced(GROUP[:-1]), align=False)


def test_transfers_of_ranks_without_a_known_number_are_refused_with_the_reason(unplaced):
    with pytest.raises(InputError, match="does not state its rank and process groups"):
        stagescope.read(unplaced(GROUP[1:]), align=False)


def test_steps_between_two_marks_are_inferred_from_transfers_alone(write):
    timeline = stagescope.read(write(keep=is_no_operator, optimizer=True), align=False)
    expected = order("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    assert [labels(timeline, 1, rank) for rank in GROUP] == [
        [str(action) for action in expected[rank]] for rank in GROUP
    ]
