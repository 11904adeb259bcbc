"""Combining the traces of several ranks."""

import polars as pl
import pytest

from ingest.kineto.planted_traces import mark, write_trace
from stagescope.ingest.kineto.rank_trace import read_rank
from stagescope.ingest.kineto.timeline import timeline_of_traces
from stagescope.vocabulary.errors import InputError

HOUR_US = 3600e6


@pytest.fixture
def trace(tmp_path):
    def trace(rank, since_us=0.0, *, name=None, step=0, **more):
        events = [
            mark(f"ProfilerStep#{step}", since_us, since_us + 100),
            mark(f"PP:{rank}F0", since_us + 10 * rank, since_us + 10 * rank + 9),
        ]
        path = tmp_path / (name or f"rank{rank}.json")
        return read_rank(write_trace(path, events, rank=rank, **{"ranks": (0, 1), **more}))

    return trace


def messages(timeline, severity):
    return timeline.diagnostics.filter(pl.col("severity") == severity)["message"].to_list()


def test_ranks_of_one_host_share_a_clock_and_the_group_determines_their_stages(trace):
    timeline = timeline_of_traces([trace(1), trace(0)])
    assert timeline.ranks.select("rank", "pp", "machine", "clock", "world_size").rows() == [
        (0, 0, "h", "h/wall clock", 2), (1, 1, "h", "h/wall clock", 2),
    ]  # fmt: skip
    assert timeline.clocks.select("clock", "error_hi_ns").rows() == [("h/wall clock", 0)]
    assert timeline.spans.select("rank", "stage", "chunk").rows() == [(0, 0, 0), (1, 1, 0)]
    assert timeline.diagnostics.is_empty()


def test_every_host_has_its_own_clock(trace):
    timeline = timeline_of_traces([trace(0), trace(1, host="other")])
    assert timeline.clocks.select("clock", "error_hi_ns").rows() == [
        ("h/wall clock", None), ("other/wall clock", None),
    ]  # fmt: skip


def test_several_windows_of_one_rank_are_joined(trace):
    timeline = timeline_of_traces([trace(0, 500.0, name="b.json", step=9), trace(0, name="a.json"), trace(1)])
    assert timeline.steps.select("rank", "step").rows() == [(0, 0), (1, 0), (0, 9)]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"since_us": 5e6}, "it was recorded at another time"),
        ({"since_us": HOUR_US, "host": "other"}, "it was recorded at another time"),
        ({"ranks": (0, 1, 2)}, "its run had 3 ranks, not 2"),
    ],
)
def test_traces_of_two_runs_are_rejected(trace, other, reason):
    with pytest.raises(InputError, match=reason):
        timeline_of_traces([trace(0), trace(1, **other)])


def test_wall_clocks_of_two_hosts_may_differ_by_minutes(trace):
    assert timeline_of_traces([trace(0), trace(1, HOUR_US / 60, host="other")]).ranks.height == 2


def test_two_traces_of_one_rank_and_step_are_rejected(trace):
    with pytest.raises(InputError, match="two recordings of rank 0"):
        timeline_of_traces([trace(0), trace(0, 500.0, name="again.json")])


def test_a_trace_without_an_epoch_has_a_separate_clock(trace):
    timeline = timeline_of_traces([trace(0), trace(1, baseTimeNanoseconds=None)])
    assert timeline.clocks.height == 2
    assert "does not state when its clock began" in messages(timeline, "warning")[0]


def test_a_rank_without_actions_is_an_error_diagnostic(trace, tmp_path):
    empty = read_rank(write_trace(tmp_path / "e.json", [mark("epoch", 0, 1)], rank=1, ranks=(0, 1)))
    assert messages(timeline_of_traces([trace(0), empty]), "error") == [
        "no pipeline action in the trace: it has no annotations, and none could be inferred from operators"
    ]


def test_the_error_for_traces_without_actions_states_advice_or_damage(tmp_path):
    path = write_trace(tmp_path / "rank0.json", [mark("epoch", 0, 1)])
    with pytest.raises(InputError, match="it has no annotation such as PP:1F0") as error:
        timeline_of_traces([read_rank(path)])
    assert "record_function(f'F{stage}.{microbatch}')" in error.value.hint
    text = path.read_text()
    path.write_text(text[: text.index('"ph"')], encoding="utf-8")
    with pytest.raises(InputError, match="no pipeline action in its readable part: the trace is truncated"):
        timeline_of_traces([read_rank(path)])
