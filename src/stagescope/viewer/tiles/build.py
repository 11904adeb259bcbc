"""From spans to level files: one pass over the run, a few rows of the picture at a time.

Rows are independent of each other, so that the memory this takes depends on the largest chunk and not on the run.
Each level is made from the one before it, with bins four times as wide.
"""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.viewer.tiles.index import TrackIndex, index_tracks, join_indexes, save_index
from stagescope.viewer.tiles.merge import block_records, blocks_of_spans, merge_blocks
from stagescope.viewer.tiles.records import FACTS, LANE_COUNT, SPAN, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import polars as pl

    from stagescope.viewer.tiles.records import Records

    Progress = Callable[[int, int], object]

FORMAT = 1
"""Version of the files; folders of another version are rebuilt."""

EXPONENT_STEP = 2
"""Each stored level has bins 2^2 times as wide as the level before; levels in between are computed on request."""

SPANS_PER_BIN = 4
"""About how many spans the narrowest bins hold: with fewer, the first level would be as large as the run."""

FEWEST_BINS = 256
"""The last level is the first whose bins are this many or fewer for the whole run."""

WORKERS = 2
"""Threads that merge: the work is in numpy, which releases the GIL."""

SHAPE_FILE = "shape.json"
SPANS_FILE, FACTS_FILE = "spans", "facts"


class Chunk(NamedTuple):
    """The spans of rows `first_row` to `end_row` - 1, as viewer/run_data.py has them; `name` is a code."""

    first_row: int
    end_row: int
    spans: pl.DataFrame


@dataclass(frozen=True)
class Extent:
    """What is known before the first chunk: how much there is, whether any span has facts, and all names.

    `end` is counted from the base.
    """

    row_count: int
    span_count: int
    end: int
    has_facts: bool
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """Contents of a folder of levels; `exponents` are those of the stored levels, narrowest bins first."""

    format: int
    row_count: int
    span_count: int
    end: int
    exponents: tuple[int, ...]
    has_facts: bool
    names: tuple[str, ...]


def level_file(exponent: int) -> str:
    """Return the name of the file that holds the level with bins 2^exponent ns wide."""
    return f"level-{exponent}"


def build_levels(
    chunks: Iterable[Chunk], extent: Extent, folder: Path, on_done: Progress | None = None
) -> Shape:
    """Return the shape of the levels written to `folder`, which exists and is empty.

    Chunks come in the order of their rows and leave none out. `on_done` gets the number of spans that are written,
    and of all, after each chunk. Raises OSError when the system refuses.
    """
    chunks = iter(chunks)
    head = list(islice(chunks, 1))
    exponents = choose_exponents(head[0].spans, extent.end) if head else ()
    indexes: dict[str, list[TrackIndex]] = {}
    span_count = 0
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / name).open("wb")) for name in _names(exponents, extent)}
        for chunk, made in _in_turn(_both(head, chunks), exponents, has_facts=extent.has_facts):
            _append(made, files, indexes)
            span_count += chunk.spans.height
            if on_done is not None:
                on_done(span_count, extent.span_count)
    for name, parts in indexes.items():
        save_index(join_indexes(parts), folder / f"{name}.index")
    shape = Shape(FORMAT, extent.row_count, span_count, extent.end, exponents, extent.has_facts, extent.names)
    (folder / SHAPE_FILE).write_bytes(json.dumps(asdict(shape)).encode())
    return shape


def read_shape(folder: Path) -> Shape:
    """Return the shape of the levels in `folder`. Raises OSError or ValueError where there are none of this version."""
    found = json.loads((folder / SHAPE_FILE).read_text(encoding="utf-8"))
    if found["format"] != FORMAT:
        raise ValueError(f"levels of version {found['format']}, not {FORMAT}")
    return Shape(**{**found, "exponents": tuple(found["exponents"]), "names": tuple(found["names"])})


def choose_exponents(spans: pl.DataFrame, end: int) -> tuple[int, ...]:
    """Return the exponents of the levels to store, from the median span to the whole run."""
    median = spans.select(spans["duration"].filter(spans["duration"] > 0).median()).item()
    first = max(0, int(SPANS_PER_BIN * (median or 1)).bit_length())
    last = max(first, (end // FEWEST_BINS).bit_length())
    return tuple(range(first, last + EXPONENT_STEP, EXPONENT_STEP))


def _names(exponents: Iterable[int], extent: Extent) -> list[str]:
    facts = [FACTS_FILE] if extent.has_facts else []
    return [SPANS_FILE, *facts, *map(level_file, exponents)]


def _both(head: list[Chunk], rest: Iterator[Chunk]) -> Iterator[Chunk]:
    yield from head
    yield from rest


class _Made(NamedTuple):
    """The parts of one chunk by file name; facts have no index of their own."""

    records: dict[str, Records]
    indexes: dict[str, TrackIndex]


def _in_turn(
    chunks: Iterator[Chunk], exponents: tuple[int, ...], *, has_facts: bool
) -> Iterator[tuple[Chunk, _Made]]:
    """Yield every chunk with its records, in order, while the next ones are worked on."""
    make = partial(_make, exponents=exponents, has_facts=has_facts)
    first = list(islice(chunks, WORKERS))
    if len(first) == 1:  # as each version of a running training; threads take longer to start than this
        yield first[0], make(first[0])
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        running = deque((chunk, pool.submit(make, chunk)) for chunk in first)
        while running:
            chunk, result = running.popleft()
            yield chunk, result.result()
            running.extend((one, pool.submit(make, one)) for one in islice(chunks, 1))


def _make(chunk: Chunk, exponents: tuple[int, ...], *, has_facts: bool) -> _Made:
    """Return a chunk's spans and facts, and its blocks on every level."""
    first_track = chunk.first_row * LANE_COUNT
    track_count = (chunk.end_row - chunk.first_row) * LANE_COUNT
    spans = pack(chunk.spans, SPAN)
    track = chunk.spans["row"].to_numpy().astype(np.int64) * LANE_COUNT + spans["lane"]
    records = {SPANS_FILE: spans} | ({FACTS_FILE: pack(chunk.spans, FACTS)} if has_facts else {})
    indexes = {SPANS_FILE: index_tracks(spans, track - first_track, track_count)}
    blocks = blocks_of_spans(spans, track)
    for exponent in exponents:
        blocks = merge_blocks(blocks, 1 << exponent)
        name = level_file(exponent)
        records[name] = block_records(blocks)
        indexes[name] = index_tracks(records[name], blocks.track - first_track, track_count)
    return _Made(records, indexes)


def _append(made: _Made, files: Mapping[str, IO[bytes]], indexes: dict[str, list[TrackIndex]]) -> None:
    for name, file in files.items():
        made.records[name].tofile(file)
        if name in made.indexes:
            indexes.setdefault(name, []).append(made.indexes[name])
