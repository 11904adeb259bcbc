"""Reader of AMD Primus dumps: pp_rank_N.json and config.json, as written by `--dump_pp_data`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.primus.dumps import Config, Dump, read_config, read_dump
from stagescope.ingest.primus.errors import no_dumps, other_directory
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.usable_files import read_usable
from stagescope.model import CLOCKS, DIAGNOSTICS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DUMP_NAME = re.compile(r"pp_rank_(\d{1,6})\.json")
NS_PER_MS = 1_000_000
CLOCK = "start of each rank's iterations"
CLOCK_ROW = {
    "clock": CLOCK,
    "offset_ns": 0,
    "method": "none: every rank counts from its own start of the iteration",
}
NO_SHARED_CLOCK = (
    "the ranks share no clock: all are shown as if they began each iteration at the same time, and times between ranks"
    " are wrong by the difference of their actual starts"
)
DUMP_FIELDS = (b'"fwd_start"', b'"total"')
CONFIG_FIELDS = (b'"pp_size"', b'"train_iters"', b'"dp_size"')


def is_dump(_: Path, head: bytes) -> bool:
    """Return whether a file is a dump of Primus, or the config.json next to one."""
    text = head.lstrip()
    is_object = text.startswith(b"{") and b'"traceEvents"' not in head
    return is_object and (
        all(map(head.__contains__, DUMP_FIELDS)) or all(map(head.__contains__, CONFIG_FIELDS))
    )


def read_dumps(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of a directory's dumps: rank N of the timeline is pipeline rank N of the first replica.

    Every iteration is a step. All ranks are shown as if they began it at the same time, as in Primus's own figures: the
    dumps do not record their offsets, which differ between iterations. A dump without an iteration is an error
    in diagnostics as long as another one is usable. Raises InputError for dumps of several directories.
    """
    files = _dump_files(paths)
    config, diagnostics = read_config(files[0].parent)
    places = {path: place for place, path in enumerate(files)}
    dumps, refused = read_usable(
        lambda path: read_dump(path, _rank_of(path, places), config), files, options.done
    )
    diagnostics += refused
    diagnostics += [row for dump in dumps for row in dump.diagnostics]
    if len(dumps) > 1:
        diagnostics.append(Diagnostic("warning", NO_SHARED_CLOCK, count=len(dumps), code="clock.not_shared"))
    diagnostics += [*_memory(dumps), *_missing_iterations(dumps), *_missing_actions(dumps, config)]
    steps = _steps(dumps)
    return Timeline(
        spans=conform(pl.concat(_spans(dump, steps) for dump in dumps), SPANS),
        ranks=conform(pl.DataFrame([_rank(dump, config) for dump in dumps], infer_schema_length=None), RANKS),
        steps=conform(steps, STEPS),
        clocks=conform(pl.DataFrame([CLOCK_ROW]), CLOCKS),
        diagnostics=conform(diagnostics_table(diagnostics), DIAGNOSTICS),
    )


def _dump_files(paths: Sequence[Path]) -> list[Path]:
    """Return the given dumps, or those next to the config.json if only that is given."""
    dumps = [path for path in paths if path.name != "config.json"]
    if not dumps:
        dumps = [path for path in paths[0].parent.iterdir() if DUMP_NAME.fullmatch(path.name)]
    if not dumps:
        raise no_dumps(paths[0])
    for path in dumps:
        if path.parent != dumps[0].parent:
            raise other_directory(path, dumps[0])
    return sorted(dumps, key=lambda path: natural_key(path.name))


def _rank_of(path: Path, places: Mapping[Path, int]) -> int:
    """Return the pipeline rank of a dump: the number in its name, else its place among all dumps."""
    in_name = DUMP_NAME.fullmatch(path.name)
    return int(in_name[1]) if in_name else places[path]


def _rank(dump: Dump, config: Config) -> dict[str, object]:
    return {
        "rank": dump.pp_rank,
        "pp": dump.pp_rank,
        "clock": CLOCK,
        "world_size": config.pp_size,
        "source": str(dump.path),
    }


def _steps(dumps: Sequence[Dump]) -> pl.DataFrame:
    """Return consecutive iterations (step, rank, start_ns, end_ns), each as long as its slowest rank."""
    lengths = {(step, dump.pp_rank): _length_ms(dump, step) for dump in dumps for step in _numbers(dump)}
    rows, start_ns = [], 0
    for step in sorted({step for step, _ in lengths}):
        own = {rank: round(ms * NS_PER_MS) for (number, rank), ms in lengths.items() if number == step}
        rows += [(step, rank, start_ns, start_ns + length_ns) for rank, length_ns in own.items()]
        start_ns += max(own.values())
    schema = {"step": pl.Int32, "rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


def _numbers(dump: Dump) -> list[int]:
    return sorted({*dump.actions["step"], *dump.totals_ms})


def _length_ms(dump: Dump, step: int) -> float:
    """Return the duration of an iteration, at least up to the end of its last action."""
    last = dump.actions.filter(pl.col("step") == step)["end_ms"].max()
    return max(dump.totals_ms.get(step, 0.0), last if isinstance(last, float) else 0.0)


def _spans(dump: Dump, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the actions as spans; a forward and a backward with the same times (one combined call) are a pair."""
    origins = steps.group_by("step").agg(origin_ns=pl.min("start_ns"))
    times = {
        f"{side}_ns": pl.col("origin_ns") + (pl.col(f"{side}_ms") * NS_PER_MS).round().cast(pl.Int64)
        for side in ("start", "end")
    }
    moment = ["step", "start_ms", "end_ms"]
    together = pl.struct(moment).rank("dense").cast(pl.Int32)
    placed = dump.actions.join(origins, on="step", how="left", maintain_order="left").with_columns(
        **times,
        rank=pl.lit(dump.pp_rank, pl.Int32),
        lane=pl.lit("compute"),
        pair=pl.when(pl.len().over(moment) > 1).then(together),
    )
    # With several chunks the placement (loop or V) decides the stage, which ingest/stages.py infers for all readers.
    has_chunks = (dump.actions["chunk"].max() or 0) != 0 or dump.actions["chunk"].null_count() > 0
    return placed.with_columns(stage=pl.lit(None if has_chunks else dump.pp_rank, pl.Int32))


def _memory(dumps: Sequence[Dump]) -> list[Diagnostic]:
    peaks = [f"rank {dump.pp_rank} {dump.memory_gb:.1f} GB" for dump in dumps if dump.memory_gb is not None]
    if not peaks:
        return []
    more = f" and {len(peaks) - MOST_SHOWN} more" if len(peaks) > MOST_SHOWN else ""
    text = f"peak memory reserved by torch: {', '.join(peaks[:MOST_SHOWN])}{more}"
    return [Diagnostic("info", text, count=len(peaks), code="memory.reserved")]


MOST_SHOWN = 16


def _missing_iterations(dumps: Sequence[Dump]) -> list[Diagnostic]:
    every = {step for dump in dumps for step in _numbers(dump)}
    found = []
    for dump in dumps:
        missing = sorted(every.difference(_numbers(dump)))
        if missing:
            text = f"iterations that other ranks have are missing: {compact_ranges(missing)}"
            found.append(
                Diagnostic(
                    "error", text, str(dump.path), dump.pp_rank, count=len(missing), code="steps.missing"
                )
            )
    return found


def _missing_actions(dumps: Sequence[Dump], config: Config) -> list[Diagnostic]:
    """Return a warning per rank that has iterations with fewer forwards than the run declared."""
    if not config.num_mbs:
        return []
    declared = config.num_mbs * (config.vp_size or 1)
    found = []
    for dump in dumps:
        forwards = dump.actions.filter(pl.col("kind") == "forward").group_by("step").len()
        short = forwards.filter(pl.col("len") < declared)
        if short.height:
            text = f"iterations have fewer forwards than the {declared} that config.json declares"
            found.append(
                Diagnostic(
                    "warning", text, str(dump.path), dump.pp_rank, count=short.height, code="actions.missing"
                )
            )
    return found


READER = Reader(
    name="primus",
    patterns=("pp_rank_*.json",),
    description="dumps of Primus (`--dump_pp_data`): pp_rank_N.json and config.json",
    recognizes=is_dump,
    read=read_dumps,
)
