"""Assigning the spans of a rank to steps."""

import polars as pl

from stagescope.ingest.annotations.steps import (
    STEPS_SCHEMA,
    named_steps,
    profiler_steps,
    step_openings,
    steps_of_ranks,
    with_steps,
)

NO_STEPS = pl.DataFrame(schema=STEPS_SCHEMA)


def actions(text):
    """Return an action of 10 ns per word, such as ``F0`` or ``B1``; ``opt`` is the optimizer."""
    kinds = {"F": "forward", "B": "backward", "o": "optimizer"}
    rows = [
        (kinds[word[0]], 0, int(word[1:]) if word[1:].isdigit() else None, place * 10, place * 10 + 8)
        for place, word in enumerate(text.split())
    ]
    schema = {
        "kind": pl.String,
        "stage": pl.Int32,
        "microbatch": pl.Int32,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
    return pl.DataFrame(rows, schema, orient="row").with_columns(mark_start_ns="start_ns")


def steps(text, marked=NO_STEPS):
    found = actions(text)
    return with_steps(found, marked, step_openings(found))["step"].to_list()


def test_a_step_ends_with_its_optimizers():
    assert steps("F0 B0 opt opt F0 B0 opt") == [0, 0, 0, 0, 1, 1, 1]


def test_without_an_optimizer_a_step_ends_before_a_repeated_action():
    assert steps("F0 F1 B0 B1 F0 F1 B0 B1 F0") == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_profiler_steps_apply_and_spans_between_them_have_no_step():
    marks = pl.DataFrame(
        {
            "name": ["ProfilerStep#4", "ProfilerStep*", "ProfilerStep#5"],
            "start_ns": [0, 1, 30],
            "end_ns": [19, 2, 49],
        }
    )
    marked = profiler_steps(marks)
    assert marked["step"].to_list() == [4, 5]
    assert steps("F0 B0 F1 F0 B0 F0", marked) == [4, 4, None, 5, 5, None]


def test_a_step_in_an_action_name_takes_precedence():
    found = actions("F0 B0").with_columns(step=pl.Series([7, None], dtype=pl.Int32))
    assert with_steps(found, NO_STEPS, [])["step"].to_list() == [7, 0]


def test_without_actions_there_are_no_steps():
    assert steps("") == []


def test_spans_without_a_stated_step_belong_to_the_step_that_ends_next():
    found = actions("F0 B0 F0 B0").with_columns(
        step=pl.Series([7, 7, 8, 8], dtype=pl.Int32), mark_end_ns="end_ns"
    )
    transfers = pl.DataFrame({"start_ns": [-50, 12, 19, 99]})
    assert with_steps(transfers, named_steps(found), [])["step"].to_list() == [7, 7, 8, 8]
    assert named_steps(actions("F0 B0")).is_empty()


def test_the_steps_of_many_ranks_are_those_of_each():
    texts = ["F0 B0 opt F0 B0 opt opt", "F0 F1 B0 B1 F0 F1 B0 B1", "opt", "F0 B0 F0 B0 opt F0 F1 B0 F0 B1"]
    ranks = [actions(text).with_columns(rank=pl.lit(number, pl.Int32)) for number, text in enumerate(texts)]
    mixed = pl.concat(ranks).sample(fraction=1.0, shuffle=True, seed=7).drop("mark_start_ns")
    found = steps_of_ranks(mixed).sort("rank", "start_ns")
    assert found["step"].to_list() == [step for text in texts for step in steps(text)]


def test_a_transfer_is_in_the_step_of_an_action_of_its_rank():
    own = actions("F0 B0 opt F0 B0 opt").with_columns(rank=pl.lit(0, pl.Int32))
    other = own.with_columns(pl.col("start_ns", "end_ns") - 30, rank=pl.lit(1, pl.Int32))
    receive = own[3:4].with_columns(
        kind=pl.lit("recv_forward"), start_ns=pl.lit(21, pl.Int64), end_ns=pl.lit(25, pl.Int64)
    )
    found = steps_of_ranks(pl.concat([own, other, receive]).drop("mark_start_ns"))
    assert found.filter(kind="recv_forward")["step"].to_list() == [1]
