"""Selecting the sources of one run."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.ingest.run_selection import Source, select_run
from stagescope.model import SPANS, Timeline
from stagescope.vocabulary.errors import InputError

TODAY_NS = 1_760_000_000 * 10**9


def of_rank(rank: int, text: str = "F0 F1 B0 B1", *, origin_ns: int = TODAY_NS) -> Timeline:
    drawn = timeline_from_text(text, origin_ns=origin_ns)
    number = pl.lit(rank, pl.Int32).alias("rank")
    return replace(drawn, spans=drawn.spans.with_columns(number), ranks=drawn.ranks.with_columns(number))


def source(name: str, timeline: Timeline) -> Source:
    return Source(name, (Path(f"{name}.file"),), timeline)


def test_formats_with_different_ranks_at_the_same_time_are_one_run():
    red, blue = source("red", of_rank(0)), source("blue", of_rank(1))
    assert select_run([red, blue], frozenset()) == ([red.timeline, blue.timeline], [])


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_formats_with_the_same_rank_the_one_with_more_spans_is_kept(first):
    sources = [source("red", of_rank(0)), source("blue", of_rank(0, "F0 B0"))]
    kept, [note] = select_run([sources[first], sources[1 - first]], frozenset())
    assert kept == [sources[0].timeline]
    assert (note.severity, note.source, note.count) == ("error", "blue.file", 1)
    assert note.message == "not read: 1 files (blue) belong to another run: rank 0 is also in red.file (red)"


def test_formats_recorded_at_different_times_are_not_merged():
    later = of_rank(1, "F0 B0", origin_ns=TODAY_NS + 10**18)
    kept, [note] = select_run([source("red", of_rank(0)), source("blue", later)], frozenset())
    assert len(kept) == 1
    assert note.message.endswith("they cover another time than red.file (red)")


def test_a_conflicting_named_file_is_an_error():
    sources = [source("red", of_rank(0)), source("blue", of_rank(0, "F0 B0"))]
    with pytest.raises(
        InputError, match=r"blue\.file belongs to another run than the other files: rank 0 is also in red"
    ):
        select_run(sources, frozenset({Path("blue.file")}))


def test_excluding_a_format_without_spans_is_only_an_info():
    bare = of_rank(0).with_spans(SPANS.empty())
    kept, [note] = select_run([source("blue", bare), source("red", of_rank(0))], frozenset())
    assert len(kept) == 1
    assert note.severity == "info"
