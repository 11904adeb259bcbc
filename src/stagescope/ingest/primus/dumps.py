"""Read dumps of AMD's Primus (`--dump_pp_data`): a directory with config.json and one pp_rank_N.json per pipeline rank.

Source: AMD-AGI/Primus, primus/backends/megatron/core/pipeline_parallel/pp_visualizer.py and
tools/visualization/pp_vis/vis.py. Times are in milliseconds, measured with CUDA events from the rank's own start of the
iteration, so ranks share no clock. Split backwards fill `wgrad_*`, and Primus's own schedules fill `*_minibatch` and
`*_chunk`; without these fields, actions are in the order of Megatron's interleaved schedule.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import polars as pl

from stagescope.ingest.primus.errors import no_iteration
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.structure import find_elements
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SERIES = {"fwd": "forward", "bwd": "backward", "wgrad": "backward_weight"}
KEY_BEFORE = re.compile(rb'"(\d{1,9})"\s*:\s*$')
KEY_BYTES = 64
NO_NUMBERS = re.compile(rb"(?<=[:,\[])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
MOST_BYTES = 1 << 30
MOST_MS = 1e12
ACTIONS_SCHEMA = {
    "step": pl.Int32, "kind": pl.String, "chunk": pl.Int32, "microbatch": pl.Int32, "start_ms": pl.Float64,
    "end_ms": pl.Float64,
}  # fmt: skip


class Config(NamedTuple):
    """The fields of config.json: parallel sizes and micro-batches per iteration; None if not stated."""

    pp_size: int | None = None
    vp_size: int | None = None
    num_mbs: int | None = None


class Dump(NamedTuple):
    """One rank's dump: actions (ACTIONS_SCHEMA), duration of each iteration in ms, and peak memory in GB."""

    path: Path
    pp_rank: int
    actions: pl.DataFrame
    totals_ms: dict[int, float]
    memory_gb: float | None
    diagnostics: list[Diagnostic]


def read_config(folder: Path) -> tuple[Config, list[Diagnostic]]:
    """Return the content of the directory's config.json, and a warning if it is missing or unusable."""
    path = folder / "config.json"
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        text = "no usable config.json: sizes are taken from the dumps, one model chunk per rank unless stated there"
        return Config(), [Diagnostic("warning", text, str(path), code="config.missing")]
    # Older dumps use the second names; vis.py reads both.
    vp_size, num_mbs = (
        found.get("vp_size", found.get("vpp_size")),
        found.get("num_mbs", found.get("micro_batches")),
    )
    return Config(_size(found.get("pp_size")), _size(vp_size), _size(num_mbs)), []


def read_dump(path: Path, pp_rank: int, config: Config) -> Dump:
    """Return the dump of one rank; raises InputError for a file without a complete iteration."""
    with open_stream(path) as stream:
        text = stream.read(MOST_BYTES)
        damage = stream.damage
    diagnostics: list[Diagnostic] = []
    iterations = dict(_iterations(text, path, pp_rank, diagnostics))
    if not iterations:
        raise no_iteration(path)
    if damage or not text.rstrip().endswith(b"}"):
        message = f"the dump is truncated; the iterations before the cut were read: {damage or 'its JSON does not end'}"
        diagnostics.append(Diagnostic("error", message, str(path), pp_rank, code="input.truncated"))
    tables = [_actions(step, one, config) for step, one in iterations.items()]
    actions, lost = pl.concat([table for table, _ in tables]), sum(count for _, count in tables)
    if lost:
        message = "actions have no valid start or end and were dropped"
        diagnostics.append(
            Diagnostic("error", message, str(path), pp_rank, count=lost, code="actions.dropped")
        )
    totals = {
        step: total for step, one in iterations.items() if (total := _number(one.get("total"))) is not None
    }
    memory = [gb for one in iterations.values() if (gb := _number(one.get("memory"))) is not None]
    return Dump(path, pp_rank, actions, totals, max(memory, default=None), diagnostics)


def _iterations(
    text: bytes, path: Path, pp_rank: int, diagnostics: list[Diagnostic]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete iterations with their numbers; an iteration with invalid JSON is dropped and reported."""
    body = text[text.find(b"{") + 1 :]
    found = find_elements(body)
    for start, stop in zip(found.starts.tolist(), found.stops.tolist(), strict=True):
        key = KEY_BEFORE.search(body[max(0, start - KEY_BYTES) : start])
        try:
            one = msgspec.json.decode(NO_NUMBERS.sub(rb"\1null", body[start:stop]))
        except (msgspec.DecodeError, RecursionError) as reason:
            message = f"an iteration cannot be read and was dropped: {reason}"
            diagnostics.append(Diagnostic("error", message, str(path), pp_rank, code="iterations.dropped"))
            continue
        if key and isinstance(one, dict):
            yield int(key[1]), one


def _actions(step: int, iteration: dict[str, Any], config: Config) -> tuple[pl.DataFrame, int]:
    """Return the actions of one iteration, and the number of actions without a start or end."""
    parts, lost = [], 0
    for series, kind in SERIES.items():
        starts, ends = _list(iteration, f"{series}_start"), _list(iteration, f"{series}_end")
        count, most = min(len(starts), len(ends)), max(len(starts), len(ends))
        rows = [
            (step, kind, *number, _number(start), _number(end))
            for number, start, end in zip(
                _numbers(iteration, series, count, config), starts, ends, strict=False
            )
        ]
        table = pl.DataFrame(rows, ACTIONS_SCHEMA, orient="row")
        whole = table.drop_nulls(["start_ms", "end_ms"])
        lost += most - whole.height
        parts.append(whole)
    actions = pl.concat(parts)
    # If the weight gradient of a micro-batch is a separate action, its backward is the input-gradient half.
    later = actions.filter(pl.col("kind") == "backward_weight").select(
        "chunk", "microbatch", is_half=pl.lit(value=True)
    )
    halved = actions.join(
        later.unique(), on=["chunk", "microbatch"], how="left", nulls_equal=True, maintain_order="left"
    )
    is_half = (pl.col("kind") == "backward") & pl.col("is_half").fill_null(value=False)
    named = halved.with_columns(kind=pl.when(is_half).then(pl.lit("backward_input")).otherwise("kind"))
    return named.drop("is_half"), lost


def _numbers(
    iteration: dict[str, Any], series: str, count: int, config: Config
) -> Sequence[tuple[int | None, int | None]]:
    """Return chunk and micro-batch of each action of a series: as stated by the dump, else in Megatron's order."""
    chunks, microbatches = _list(iteration, f"{series}_chunk"), _list(iteration, f"{series}_minibatch")
    if len(chunks) >= count and len(microbatches) >= count:
        # Numbered from 1 if 0 never occurs and the number of micro-batches does.
        counts_from_1 = 0 not in microbatches and config.num_mbs in microbatches
        first = 1 if counts_from_1 else 0
        return [
            (_whole(chunk), None if (number := _whole(microbatch)) is None else number - first)
            for chunk, microbatch in zip(chunks[:count], microbatches[:count], strict=True)
        ]
    vp_size = config.vp_size or 1
    if vp_size == 1:
        return [(0, place) for place in range(count)]
    if series == "wgrad" or not config.pp_size or not config.num_mbs:
        return [(None, None)] * count
    order = _interleaved(config.pp_size, vp_size, config.num_mbs, backward=series == "bwd")
    return [*order[:count], *[(None, None)] * (count - len(order))]


def _interleaved(pp_size: int, vp_size: int, num_mbs: int, *, backward: bool) -> list[tuple[int, int]]:
    """Return chunk and micro-batch in the order of Megatron-core's interleaved schedule (schedules.py, 0.16).

    Groups of `pp_size` micro-batches run through one chunk after the other; backwards begin with the last chunk.
    """
    chunks = range(vp_size - 1, -1, -1) if backward else range(vp_size)
    return [
        (chunk, microbatch)
        for first in range(0, num_mbs, pp_size)
        for chunk in chunks
        for microbatch in range(first, min(first + pp_size, num_mbs))
    ]


def _list(iteration: dict[str, Any], name: str) -> list[Any]:
    found = iteration.get(name)
    return found if isinstance(found, list) else []


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MOST_MS else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None


def _size(value: Any) -> int | None:
    return _whole(value) or None
