"""Choose the mapping of a trace: that of the call, a shipped one that fits, or a common pattern of names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.annotations.name_pattern import COMMON_PATTERNS
from stagescope.ingest.mapping.expressions import ARGS
from stagescope.ingest.mapping.mapping import MappingRequest, pattern_mapping
from stagescope.ingest.mapping.mapping_files import ready_mappings
from stagescope.ingest.mapping.proposal import MICROBATCH_KEYS, WHOLE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from stagescope.ingest.mapping.mapping import EventMapping
    from stagescope.ingest.mapping.slices import TraceSlices
    from stagescope.ingest.reader import ReadOptions

ITERATION_KEYS = ("iteration", "step", "iter", "global_step", "train_step", "train_iter")
"""Arguments that number iterations, with which the number of steps must agree."""


class Choice(NamedTuple):
    """The mapping of a trace, and whether the call gave it, or else why it was chosen."""

    mapping: EventMapping
    reason: str


GIVEN, RECOGNIZED, ASSUMED = "given", "recognized", "assumed"


def wanted_arguments(options: ReadOptions) -> tuple[str, ...]:
    """Return the arguments of events that a reader has to provide for the mapping of a call."""
    request = options.mapping or MappingRequest()
    keys = {*ITERATION_KEYS, *MICROBATCH_KEYS}
    keys |= _arguments_of(column for each in request.fields.values() for column in each.columns)
    keys |= _arguments_of(column for column, _ in request.only)
    mappings = [request.mapping] if request.mapping is not None else list(ready_mappings().values())
    return tuple(sorted(keys.union(*(mapping.arguments for mapping in mappings))))


def _arguments_of(columns: Iterable[str]) -> set[str]:
    return {column.removeprefix(f"{ARGS}.") for column in columns if column.startswith(f"{ARGS}.")}


def choose_mapping(files: Sequence[TraceSlices], names: Sequence[str], options: ReadOptions) -> Choice | None:
    """Return the mapping for the slices of a call, which have these names; None if none fits."""
    request = options.mapping or MappingRequest()
    if request.mapping is not None:
        found: Choice | None = Choice(request.mapping, GIVEN)
    elif options.pattern is not None:
        mapping = pattern_mapping(options.pattern)
        found = Choice(mapping, GIVEN) if _matches_any(mapping, names) else None
    else:
        found = _recognized(files) or _assumed(names, has_fields=bool(request.fields))
    return found and found._replace(mapping=found.mapping.with_fields(request.fields, request.only))


def _recognized(files: Sequence[TraceSlices]) -> Choice | None:
    for mapping in ready_mappings().values():
        if mapping.signature and any(_has_signature(file.slices, mapping) for file in files):
            return Choice(mapping, RECOGNIZED)
    return None


def _has_signature(slices: pl.DataFrame, mapping: EventMapping) -> bool:
    for column, pattern in mapping.signature:
        texts = slices[column].drop_nulls().unique()
        if not any(pattern.find(text) is not None for text in texts):
            return False
    return all(
        f"{ARGS}.{key}" in slices.columns and slices[f"{ARGS}.{key}"].null_count() < slices.height
        for key in mapping.signature_arguments
    )


def _assumed(names: Sequence[str], *, has_fields: bool) -> Choice | None:
    """Return the first pattern with forwards and backwards; that whole names are kinds only if fields are mapped."""
    for text in (*COMMON_PATTERNS, *(WHOLE_NAMES if has_fields else ())):
        mapping = pattern_mapping(text)
        pattern = mapping.rules[0].names
        kinds = {action.kind for name in names if pattern is not None and (action := pattern.action(name))}
        if "forward" in kinds and kinds & {"backward", "backward_input"}:
            return Choice(mapping, ASSUMED)
    return None


def _matches_any(mapping: EventMapping, names: Sequence[str]) -> bool:
    return any(rule.names is not None and any(map(rule.names.action, names)) for rule in mapping.rules)
