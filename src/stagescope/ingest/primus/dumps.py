"""Read dumps of AMD's Primus (`--dump_pp_data`): a directory with config.json and one pp_rank_N.json per pipeline rank.

Source: AMD-AGI/Primus, primus/backends/megatron/core/pipeline_parallel/pp_visualizer.py and
tools/visualization/pp_vis/vis.py. Times are in milliseconds, measured with CUDA events from the rank's own start of the
iteration, so ranks share no clock. Split backwards fill `wgrad_*`, and Primus's own schedules fill `*_minibatch` and
`*_chunk`; without these fields, actions are in the order of Megatron's interleaved schedule. The zero-bubble runtime
fills them for `fwd_*` and `bwd_*` only; see weights.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import polars as pl

from stagescope.ingest.primus.errors import no_iteration
from stagescope.ingest.primus.weights import UNKNOWN, Executed, Shape, number_weights
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.repair import REFUSALS, decode, reason_of
from stagescope.ingest.trace_json.structure import find_elements
from stagescope.ingest.utf8 import valid_text
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.ingest.primus.weights import Number

SERIES = {"fwd": "forward", "bwd": "backward", "wgrad": "backward_weight"}
KEY_BEFORE = re.compile(rb'"(\d{1,9})"\s*:\s*$')
KEY_BYTES = 64
NUMBER = re.compile(r"[0-9]{1,9}")
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
        with open_stream(path) as stream:
            found = decode(msgspec.json.decode, stream.read())
    except (InputError, *REFUSALS):
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
    diagnostics: list[Diagnostic] = []
    iterations = dict(_iterations(path, pp_rank, diagnostics))
    if not iterations:
        raise no_iteration(path)
    shape = Shape(pp_rank, config.pp_size, config.num_mbs)
    tables = [_actions(step, one, shape, config) for step, one in iterations.items()]
    actions, lost = pl.concat([table for table, _ in tables]), sum(count for _, count in tables)
    if lost:
        message = "actions have no valid start or end and were dropped"
        diagnostics.append(
            Diagnostic("error", message, str(path), pp_rank, count=lost, code="actions.dropped")
        )
    unnumbered = actions.filter((pl.col("kind") == "backward_weight") & pl.col("microbatch").is_null()).height
    if unnumbered:
        message = (
            "weight gradients have no micro-batch: the dump does not state it, and it follows from no order"
        )
        diagnostics.append(
            Diagnostic("warning", message, str(path), pp_rank, count=unnumbered, code="weights.unnumbered")
        )
    totals = {
        step: total for step, one in iterations.items() if (total := _number(one.get("total"))) is not None
    }
    memory = [gb for one in iterations.values() if (gb := _number(one.get("memory"))) is not None]
    return Dump(path, pp_rank, actions, totals, max(memory, default=None), diagnostics)


def _iterations(path: Path, pp_rank: int, diagnostics: list[Diagnostic]) -> list[tuple[int, dict[str, Any]]]:
    """Return the iterations with their numbers; of a dump that is not valid JSON, the complete ones."""
    with open_stream(path) as stream:
        data = stream.read()
        damage = stream.damage
    text = valid_text(data, path, diagnostics, pp_rank)
    try:
        found = decode(msgspec.json.decode, text)
    except REFUSALS as refusal:
        diagnostics.append(_invalid(text, damage, refusal, path, pp_rank))
        return list(_salvaged(text, path, pp_rank, diagnostics))
    if damage:
        diagnostics.append(Diagnostic("error", damage, str(path), pp_rank, code="file.damaged"))
    items = found.items() if isinstance(found, dict) else ()
    return [(int(key), one) for key, one in items if NUMBER.fullmatch(key) and isinstance(one, dict)]


def _invalid(text: bytes, damage: str | None, refusal: BaseException, path: Path, pp_rank: int) -> Diagnostic:
    """Return the error for a dump that is not valid JSON up to its end."""
    if damage or not text.rstrip().endswith(b"}"):
        reason = damage or "its JSON does not end"
        message = f"the dump is truncated; the iterations before the cut were read: {reason}"
        return Diagnostic("error", message, str(path), pp_rank, f"byte {len(text)}", code="input.truncated")
    reason, place = reason_of(refusal)
    message = f"the dump is not valid JSON, which may have cost a part of it: {reason}"
    where = None if place is None else f"byte {place}"
    return Diagnostic("error", message, str(path), pp_rank, where, code="file.damaged")


def _salvaged(
    text: bytes, path: Path, pp_rank: int, diagnostics: list[Diagnostic]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete iterations with their numbers; an iteration with invalid JSON is dropped and reported."""
    body = text[text.find(b"{") + 1 :]
    found = find_elements(body)
    for start, stop in zip(found.starts.tolist(), found.stops.tolist(), strict=True):
        key = KEY_BEFORE.search(body[max(0, start - KEY_BYTES) : start])
        try:
            one = decode(msgspec.json.decode, body[start:stop])
        except REFUSALS as refusal:
            message = f"an iteration cannot be read and was dropped: {reason_of(refusal)[0]}"
            diagnostics.append(Diagnostic("error", message, str(path), pp_rank, code="iterations.dropped"))
            continue
        if key and isinstance(one, dict):
            yield int(key[1]), one


def _actions(step: int, iteration: dict[str, Any], shape: Shape, config: Config) -> tuple[pl.DataFrame, int]:
    """Return the actions of one iteration, and the number of actions without a start or end."""
    parts, lost = [], 0
    numbers = {series: _numbers(iteration, series, config) for series in SERIES}
    is_stated = _states_numbers(iteration, "wgrad") or not iteration.get("bwd_minibatch")
    if not is_stated:
        numbers["wgrad"] = _concluded(iteration, numbers, shape)
    for series, kind in SERIES.items():
        times, count = _times(iteration, series)
        rows = [(step, kind, *number, *time) for number, time in zip(numbers[series], times, strict=True)]
        table = pl.DataFrame(rows, ACTIONS_SCHEMA, orient="row")
        whole = table.drop_nulls(["start_ms", "end_ms"])
        lost += count - whole.height
        parts.append(whole)
    actions = pl.concat(parts)
    if not is_stated:  # of the zero-bubble runtime, whose plans either split all backwards or none
        is_half = pl.lit((actions["kind"] == "backward_weight").any())
        return actions.with_columns(kind=_halved(is_half)), lost
    # If the weight gradient of a micro-batch is a separate action, its backward is the input-gradient half.
    later = actions.filter(pl.col("kind") == "backward_weight").select(
        "chunk", "microbatch", is_half=pl.lit(value=True)
    )
    halved = actions.join(
        later.unique(), on=["chunk", "microbatch"], how="left", nulls_equal=True, maintain_order="left"
    )
    return halved.with_columns(kind=_halved(pl.col("is_half").fill_null(value=False))).drop("is_half"), lost


def _halved(is_half: pl.Expr) -> pl.Expr:
    is_backward = pl.col("kind") == "backward"
    return pl.when(is_half & is_backward).then(pl.lit("backward_input")).otherwise("kind")


def _concluded(
    iteration: dict[str, Any], numbers: dict[str, Sequence[Number]], shape: Shape
) -> Sequence[Number]:
    """Return the numbers of weight gradients that the dump does not state, from the order of all actions."""
    moments = [
        (start, end, series, place)
        for series in SERIES
        for place, (start, end) in enumerate(_times(iteration, series)[0])
        if start is not None and end is not None
    ]
    order = sorted(moments)
    executed = [Executed(series, *numbers[series][place]) for _, _, series, place in order]
    places = [place for _, _, series, place in order if series == "wgrad"]
    found = list(numbers["wgrad"])
    for place, number in zip(places, number_weights(executed, shape), strict=True):
        found[place] = number
    return found


def _times(iteration: dict[str, Any], series: str) -> tuple[list[tuple[float | None, float | None]], int]:
    """Return starts and ends of a series, and how many actions it has, some of which may lack either list."""
    starts, ends = _list(iteration, f"{series}_start"), _list(iteration, f"{series}_end")
    pairs = [(_number(start), _number(end)) for start, end in zip(starts, ends, strict=False)]
    return pairs, max(len(starts), len(ends))


def _states_numbers(iteration: dict[str, Any], series: str) -> bool:
    count = len(_times(iteration, series)[0])
    return all(len(_list(iteration, f"{series}_{name}")) >= count for name in ("chunk", "minibatch"))


def _numbers(iteration: dict[str, Any], series: str, config: Config) -> Sequence[Number]:
    """Return chunk and micro-batch of each action of a series: as stated by the dump, else in Megatron's order."""
    count = len(_times(iteration, series)[0])
    if _states_numbers(iteration, series):
        chunks, microbatches = _list(iteration, f"{series}_chunk"), _list(iteration, f"{series}_minibatch")
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
        return [UNKNOWN] * count
    # Sizes that no run has would make the order endless.
    order = list(
        islice(_interleaved(config.pp_size, vp_size, config.num_mbs, backward=series == "bwd"), count)
    )
    return [*order, *[UNKNOWN] * (count - len(order))]


def _interleaved(pp_size: int, vp_size: int, num_mbs: int, *, backward: bool) -> Iterator[tuple[int, int]]:
    """Yield chunk and micro-batch in the order of Megatron-core's interleaved schedule (schedules.py, 0.16).

    Groups of `pp_size` micro-batches run through one chunk after the other; backwards begin with the last chunk.
    """
    chunks = range(vp_size - 1, -1, -1) if backward else range(vp_size)
    return (
        (chunk, microbatch)
        for first in range(0, num_mbs, pp_size)
        for chunk in chunks
        for microbatch in range(first, min(first + pp_size, num_mbs))
    )


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
