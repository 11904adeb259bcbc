"""Merging several sources into one Timeline."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from drawing import timeline_from_text
from stagescope.ingest import Inputs, Reader, merge_timelines, read_inputs
from stagescope.model import CLOCKS, RANKS, TABLES, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError, TableError
from stagescope.vocabulary.limits import limits_in_force


def of_ranks(*ranks: int, world_size: int | None = None, source: str | None = None) -> Timeline:
    """Return a timeline of a forward and a backward per rank."""
    drawn = timeline_from_text(
        "\n".join("F0 B0" if rank in ranks else ". ." for rank in range(max(ranks) + 1))
    )
    table = pl.DataFrame(
        {"rank": ranks, "world_size": [world_size] * len(ranks), "source": [source] * len(ranks)}
    )
    return replace(drawn, ranks=conform(table, RANKS))


def diagnostics_of(timeline: Timeline) -> list[Diagnostic]:
    return [Diagnostic(**row) for row in timeline.diagnostics.to_dicts()]


def test_tables_are_concatenated_sorted_and_validated():
    merged = merge_timelines([of_ranks(1, 3), of_ranks(2, 0)])
    assert merged.ranks["rank"].to_list() == [0, 1, 2, 3]
    assert merged.spans["rank"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    for table in TABLES:
        assert getattr(merged, table.name).schema == table.schema
    assert not merged.is_partial


def test_merging_one_timeline_returns_it_unchanged():
    drawn = timeline_from_text("F0 F1 B0 - B1\n. F0 - B0 -")
    assert_frame_equal(merge_timelines([drawn]).spans, drawn.spans)
    assert_frame_equal(merge_timelines([drawn]).ranks, drawn.ranks)


def test_merging_no_timelines_returns_an_empty_one():
    assert merge_timelines([]).spans.is_empty()


def test_two_sources_of_one_rank_are_rejected_with_their_names():
    with pytest.raises(InputError) as refused:
        merge_timelines([of_ranks(0, 2, source="a.sscope"), of_ranks(1, 2, source="b.csv")])
    assert str(refused.value) == "two recordings of rank 2: a.sscope and b.csv"


@pytest.mark.parametrize("name", ["spans", "ranks", "steps", "names", "name-length"])
def test_more_than_a_limit_allows_is_refused(name):
    named = pl.Series(["first", "second"] * 3)
    drawn = of_ranks(0, 1, 2, source="a.csv")
    timeline = drawn.with_spans(
        drawn.spans.with_columns(name=named, step=pl.Series([0, 1, 2] * 2, dtype=pl.Int32))
    )
    counts = {"spans": 6, "ranks": 3, "steps": 3, "names": 2, "name-length": 6}
    with limits_in_force(counts):
        assert not merge_timelines([timeline]).is_partial
    refused = pytest.raises(InputError, match=rf"^a.csv: the .* is {counts[name]}, more than the limit of")
    with limits_in_force({**counts, name: counts[name] - 1}), refused:
        merge_timelines([timeline])


@pytest.mark.parametrize("world_size", [-5, 0, 1_000_001, 2**31 - 1])
def test_a_declared_number_of_ranks_that_no_run_has_is_reported_and_ignored(world_size):
    merged = merge_timelines([of_ranks(0, world_size=world_size, source="a.csv"), of_ranks(1, world_size=2)])
    assert merged.ranks["world_size"].to_list() == [None, 2]
    assert [(note.code, note.source) for note in diagnostics_of(merged)] == [("metadata.impossible", "a.csv")]


def test_declared_ranks_without_a_recording_are_reported():
    merged = merge_timelines([of_ranks(0, 1, 3, world_size=8), of_ranks(4)])
    assert merged.is_partial
    assert diagnostics_of(merged) == [
        Diagnostic(
            "error",
            "no recording of ranks 2 and 5-7: the run declared 8 ranks",
            count=4,
            code="ranks.missing",
        )
    ]


def test_a_rank_that_appears_only_in_spans_gets_a_row():
    drawn = of_ranks(0, 1)
    merged = merge_timelines([replace(drawn, ranks=drawn.ranks.head(1))])
    assert merged.ranks["rank"].to_list() == [0, 1]


def test_reversed_spans_are_dropped_and_counted_per_rank():
    drawn = of_ranks(0, 1, source="a.csv")
    backward = pl.when((pl.col("kind") == "backward") & (pl.col("rank") == 1)).then(pl.col("start_ns") - 1)
    merged = merge_timelines(
        [drawn.with_spans(drawn.spans.with_columns(end_ns=backward.otherwise("end_ns")))]
    )
    assert merged.spans.select("rank", "kind").rows() == [(0, "forward"), (0, "backward"), (1, "forward")]
    assert diagnostics_of(merged) == [
        Diagnostic(
            "error",
            "spans end before they start and were dropped",
            "a.csv",
            1,
            "first start_ns 1000",
            1,
            code="spans.reversed",
        )
    ]


def test_a_run_in_which_all_spans_are_reversed_is_refused_with_its_times():
    drawn = timeline_from_text("F0 F1 B0", cell_ns=1_000_000)
    in_ms = drawn.with_spans(
        drawn.spans.with_columns(start_ns=pl.col("start_ns") + 10**9, end_ns=pl.col("end_ns") // 1000)
    )
    with pytest.raises(
        InputError, match="all 3 spans end before they start, the first from 1000000000 to"
    ) as refused:
        merge_timelines([in_ms])
    assert "same unit" in refused.value.hint


def test_a_reversed_wait_is_dropped_and_its_span_kept():
    drawn = of_ranks(0)
    waits = drawn.spans.with_columns(wait_start_ns=pl.lit(9, pl.Int64), wait_end_ns=pl.lit(7, pl.Int64))
    merged = merge_timelines([drawn.with_spans(waits)])
    assert merged.spans.select("wait_start_ns", "wait_end_ns").rows() == [(None, None)] * 2
    assert [(row.message, row.count) for row in diagnostics_of(merged)] == [
        ("waits end before they start and were dropped", 2)
    ]


def test_valid_and_partly_known_waits_are_kept():
    drawn = of_ranks(0)
    waits = drawn.spans.with_columns(
        wait_start_ns=pl.Series([5, 6], dtype=pl.Int64), wait_end_ns=pl.Series([5, None], dtype=pl.Int64)
    )
    assert merge_timelines([drawn.with_spans(waits)]).spans["wait_start_ns"].to_list() == [5, 6]


def test_equal_clock_rows_of_two_sources_are_merged():
    clock = conform(pl.DataFrame({"clock": ["a"], "offset_ns": [5], "method": ["one clock"]}), CLOCKS)
    merged = merge_timelines([replace(of_ranks(0), clocks=clock), replace(of_ranks(1), clocks=clock)])
    assert merged.clocks.height == 1


def test_the_caller_can_state_the_number_of_ranks():
    bare = of_ranks(0)
    bare = replace(bare, ranks=bare.ranks.with_columns(world_size=pl.lit(None, pl.Int32)))
    assert merge_timelines([bare]).diagnostics.is_empty()
    [note] = merge_timelines([bare], 3).diagnostics.rows(named=True)
    assert (note["severity"], note["count"]) == ("error", 2)
    assert note["message"] == "no recording of ranks 1-2: the run declared 3 ranks"


def test_machines_with_separate_clocks_are_merged_with_a_warning():
    clocks = [
        conform(pl.DataFrame({"clock": [name], "offset_ns": [0], "method": ["wall"]}), CLOCKS)
        for name in "ab"
    ]
    merged = merge_timelines(replace(of_ranks(rank), clocks=clock) for rank, clock in enumerate(clocks))
    (note,) = merged.diagnostics.iter_rows(named=True)
    assert (note["severity"], note["count"]) == ("warning", 2)
    assert note["code"] == "clock.wall"


def test_a_reader_that_violates_the_table_declaration_is_rejected():
    drawn = of_ranks(0)
    with pytest.raises(TableError, match="table spans lacks the column"):
        merge_timelines([drawn.with_spans(drawn.spans.drop("kind"))])


def reader_of(name: str, result: Timeline | Exception) -> Reader:
    def read(*_):
        if isinstance(result, Exception):
            raise result
        return result

    return Reader(name, (), "", lambda *_: True, read)


GOOD = reader_of("good", of_ranks(0))


def inputs_of(tmp_path, *readers: Reader, named: tuple[str, ...] = ()) -> Inputs:
    return Inputs(
        {reader: (tmp_path / reader.name,) for reader in readers},
        frozenset(tmp_path / name for name in named),
        (Diagnostic("info", "on the way", code="test.finding"),),
    )


def test_every_format_is_read_by_its_reader_and_discovery_diagnostics_are_kept(tmp_path):
    timeline = read_inputs(inputs_of(tmp_path, GOOD, reader_of("also", of_ranks(1))))
    assert timeline.ranks["rank"].to_list() == [0, 1]
    assert [row.message for row in diagnostics_of(timeline)] == ["on the way"]


@pytest.mark.parametrize(
    ("error", "severity"), [(InputError("broken"), "error"), (TableError("of something else"), "warning")]
)
def test_a_rejected_format_that_was_only_found_becomes_a_diagnostic(tmp_path, error, severity):
    timeline = read_inputs(inputs_of(tmp_path, GOOD, reader_of("bad", error)))
    assert diagnostics_of(timeline)[-1] == Diagnostic(severity, f"not read: {error}", code="input.not_read")


def test_a_rejected_format_that_was_named_is_an_error(tmp_path):
    with pytest.raises(InputError, match="broken"):
        read_inputs(inputs_of(tmp_path, GOOD, reader_of("bad", InputError("broken")), named=("bad",)))


def test_a_rejected_format_without_others_is_an_error(tmp_path):
    with pytest.raises(InputError, match="broken"):
        read_inputs(inputs_of(tmp_path, reader_of("bad", InputError("broken"))))


def test_no_inputs_give_an_empty_timeline(tmp_path):
    assert read_inputs(inputs_of(tmp_path)).spans.equals(empty_timeline().spans)
