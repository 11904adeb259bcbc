"""Ranges from push and pop lines."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.paddle.nvtx import match_ranges


def lines(text: str) -> pl.DataFrame:
    """Return lines of NVTX: `1+name` pushes on thread 1, `1-` pops; times are their positions, in ns."""
    rows = [
        {"byte": place, "thread": int(word[0]), "name": word[2:] or None, "time_ns": place}
        for place, word in enumerate(text.split())
    ]
    schema = {"byte": pl.Int64, "thread": pl.Int64, "name": pl.String, "time_ns": pl.Int64}
    return pl.DataFrame(rows, schema)


def found(text: str):
    ranges = match_ranges(lines(text))
    return sorted(ranges.ranges.select("name", "start_ns", "end_ns").rows()), *ranges[1:]


def test_ranges_nest_like_a_stack():
    assert found("1+10 1+forward-0 1- 1+forward-1 1- 1-") == (
        [("10", 0, 5), ("forward-0", 1, 2), ("forward-1", 3, 4)], 0, 0,
    )  # fmt: skip


def test_each_thread_has_a_stack_of_its_own():
    assert found("1+a 2+b 1- 2-") == ([("a", 0, 2), ("b", 1, 3)], 0, 0)


def test_unpaired_pushes_and_pops_are_counted_and_affect_no_other():
    assert found("1- 1- 1+a 1+b 1- 1- 1- 1+c 1+d 1-") == ([("a", 2, 5), ("b", 3, 4), ("d", 8, 9)], 1, 3)


def test_a_range_named_by_a_number_is_a_step():
    ranges = match_ranges(lines("1+10 1+relu 1- 1- 1+11 1- 1+v2 1-"))
    assert ranges.steps.rows() == [(10, 0, 3), (11, 4, 5)]


@given(st.lists(st.sampled_from(["1+a", "1-", "2+b", "2-"]), max_size=40))
def test_agrees_with_a_stack_machine(words):
    stacks: dict[str, list] = {"1": [], "2": []}
    expected, pops = [], 0
    for place, word in enumerate(words):
        stack = stacks[word[0]]
        if word[1] == "+":
            stack.append((word[2:], place))
        elif stack:
            expected.append((*stack.pop(), place))
        else:
            pops += 1
    assert found(" ".join(words)) == (sorted(expected), sum(map(len, stacks.values())), pops)
