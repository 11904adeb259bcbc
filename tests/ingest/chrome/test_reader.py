"""Chrome traces of any tool, with action names described by a pattern."""

import json
from itertools import pairwise

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from stagescope.cli import main
from stagescope.ingest.chrome.reader import READER, read_slices
from stagescope.ingest.kineto import reader as kineto
from stagescope.ingest.paddle import profiler_reader as paddle_profiler
from stagescope.ingest.reader import ReadOptions
from stagescope.vocabulary.errors import InputError, UsageError

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""


def events_of(timeline, name, *, paired=False):
    """Return the actions of a timeline as Chrome events."""
    events = []
    for span in timeline.spans.iter_rows(named=True):
        text = name.format(**span)
        where = {"pid": span["rank"], "tid": 3, "cat": "action"}
        start, end = span["start_ns"] / 1000, span["end_ns"] / 1000
        if paired:
            events += [{"ph": "B", "name": text, "ts": start, **where}, {"ph": "E", "ts": end, **where}]
        else:
            events.append({"ph": "X", "name": text, "ts": start, "dur": end - start, **where})
    return [*events, {}, {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "forward_9"}}]


@pytest.fixture
def write(tmp_path):
    def write(events, name="trace.json", **facts):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": events, **facts}), encoding="utf-8")
        return path

    return write


def actions(timeline):
    rows = timeline.spans.select("rank", pl.col("kind").cast(pl.String), "microbatch", "start_ns", "end_ns")
    return sorted(rows.rows())


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("name", ["<{kind}> of {microbatch} (stage {stage})", "{kind}:{microbatch}"])
def test_recovers_a_drawn_timeline_from_any_names_and_both_event_forms(write, name, paired):
    drawn = timeline_from_text(DRAWING)
    path = write(events_of(drawn, name, paired=paired))
    read = READER.read([path], ReadOptions(pattern=name))
    assert actions(read) == actions(drawn)


@pytest.mark.parametrize("origin_us", [0, 1_790_000_000_000_000], ids=["uptime", "epoch"])
@pytest.mark.parametrize("is_named", [False, True])
def test_slices_without_a_pause_keep_their_length_if_ends_are_computed_from_durations(
    write, origin_us, is_named
):
    edges_ns = [place * 1_234_567 + place % 7 * 123 for place in range(201)]
    starts = [edge / 1000 + origin_us for edge in edges_ns]
    durations = [(after - edge) / 1000 for edge, after in pairwise(edges_ns)]
    events = []
    for place, (start, duration) in enumerate(zip(starts, durations, strict=False)):
        where = {"pid": 0, "tid": 3, "args": {"microbatch": place}}
        begin = {"ph": "B", "name": "forward", "ts": start, **where}
        events += [begin, {**begin, "ph": "E", "name": "forward" if is_named else "", "ts": start + duration}]
    assert any(end["ts"] > begin["ts"] for end, begin in zip(events[1::2], events[2::2], strict=False))
    number = pl.col("args.microbatch").cast(pl.String).cast(pl.Int64)
    slices = read_slices(write(events), ["microbatch"]).slices.sort(number)
    found = slices.select(pl.col("start_ns", "end_ns") - origin_us * 1000)
    resolution_ns = 250 if origin_us else 0
    for (start_ns, end_ns), (begin_ns, after_ns) in zip(found.rows(), pairwise(edges_ns), strict=True):
        assert abs(start_ns - begin_ns) <= resolution_ns
        assert abs(end_ns - after_ns) <= resolution_ns


@pytest.mark.parametrize("place", [2, 3, -1], ids=["begin", "end", "last end"])
@pytest.mark.parametrize("phases", ["BE", "be"])
def test_an_action_without_its_begin_or_end_is_missing_data(write, phases, place):
    begin_phase, end_phase = phases
    events = []
    for event in events_of(timeline_from_text(DRAWING), "{kind}_{microbatch}")[:-2]:
        begin = {**event, "ph": begin_phase, "id": event["ts"]}
        events += [begin, {**begin, "ph": end_phase, "ts": event["ts"] + event["dur"]}]
    del events[place]
    read = stagescope.read(write(events))
    severities = dict(read.diagnostics.select("code", "severity").iter_rows())
    assert severities["events.unpaired"] == "error"
    assert read.is_partial


def test_common_names_need_no_pattern_and_the_assumed_one_is_reported(write):
    drawn = timeline_from_text(DRAWING)
    read = stagescope.read(write(events_of(drawn, "{kind}_{microbatch}")))
    assert actions(read) == actions(drawn)
    assert "slices named like {kind}_{microbatch} are read as actions" in " ".join(
        read.diagnostics["message"]
    )


def test_a_repeated_action_begins_the_next_step(write):
    first = timeline_from_text(DRAWING)
    second = timeline_from_text(DRAWING, origin_ns=100_000)
    events = events_of(first, "{kind} {microbatch}") + events_of(second, "{kind} {microbatch}")
    spans = stagescope.read(write(events)).spans
    assert spans.group_by("step").len().sort("step").rows() == [(0, 8), (1, 8)]


def test_ranks_come_from_the_numbers_in_file_names(write):
    drawn = timeline_from_text(DRAWING)
    events = events_of(drawn, "{kind}_{microbatch}")
    paths = [
        write([one for one in events if one.get("pid") == rank], f"trace_rank{rank + 3}.json")
        for rank in (0, 1)
    ]
    read = READER.read(paths, ReadOptions())
    assert read.ranks["rank"].to_list() == [3, 4]
    assert read.clocks.height == 2


def test_the_error_for_unknown_names_lists_them(write):
    path = write([{"ph": "X", "name": "matmul", "ts": 0, "dur": 1}])
    with pytest.raises(
        InputError, match=r"no slice name matches a known naming pattern; .* 'matmul'"
    ) as error:
        stagescope.read(path)
    assert "--pattern" in error.value.hint
    with pytest.raises(InputError, match="the --pattern"):
        READER.read([path], ReadOptions(pattern="{kind}_{microbatch}"))
    with pytest.raises(UsageError):
        READER.read([path], ReadOptions(pattern="{color}"))


def test_the_commands_accept_a_pattern(write, capsys):
    path = write(events_of(timeline_from_text(DRAWING), "{kind}~{microbatch}"))
    assert main(["show", str(path), "--pattern", "{kind}~{microbatch}", "--ascii"]) == 0
    out = capsys.readouterr().out
    assert "\nPipeline, 2 ranks, 2 micro-batches" in out
    assert out.startswith("understood as:\n  ranks             2 (0-1)")


def test_traces_of_other_readers_and_our_own_exports_are_not_recognized(tmp_path):
    exported = tmp_path / "run.json"
    stagescope.export(timeline_from_text(DRAWING), exported)
    head = exported.read_bytes()[:4096]
    paddle = (
        b'{"displayTimeUnit": "ms", "schemaVersion": "1.0.2", "span_index": "0", "traceEvents": [{"ph": "X"}'
    )
    torch = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['
    assert [READER.recognizes(exported, one) for one in (head, paddle, torch)] == [False] * 3
    assert [kineto.READER.recognizes(exported, one) for one in (head, paddle, torch)] == [False, False, True]
    assert [paddle_profiler.READER.recognizes(exported, one) for one in (head, paddle, torch)] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"ph": "X", "name": "F0", "ts": "1", "dur": 1}], "Expected `float`, got `str` - at `event.ts`"),
        ([{"ph": "E", "name": "F0", "ts": 1}], "without the other event of their pair"),
        ([{"ph": "C", "name": "memory", "ts": 1}], "only metadata, counters or marks of single moments"),
    ],
    ids=["times", "ends", "counters"],
)
def test_a_trace_without_a_readable_slice_states_why(write, events, reason):
    with pytest.raises(InputError, match="has no slice that can be read") as refused:
        stagescope.read(write(events))
    assert reason in str(refused.value)
