"""A mapping: which slices of a trace are spans of which kind, and where their identity is stated.

docs/mapping.md describes mappings for users. The parts of an identity are FIELDS; a number that a pattern finds under
the name of a field (``PP:{stage}F{microbatch}``) is that field, unless an expression states it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.mapping.expressions import ARGS, parse_expression
from stagescope.ingest.mapping.patterns import TextPattern
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagescope.ingest.mapping.expressions import Expression

FIELDS: dict[str, str] = {
    "step": "training step or iteration",
    "microbatch": "micro-batch of the step, from 0",
    "stage": "global (virtual) stage, from 0",
    "chunk": "model chunk of the rank, from 0",
    "rank": "global rank",
    "pp": "pipeline-parallel coordinate of the rank",
    "dp": "data-parallel coordinate of the rank",
    "tp": "tensor-parallel coordinate of the rank",
    "cp": "context-parallel coordinate of the rank",
    "peer": "rank at the other end of a transfer",
    "peer_pp": "pipeline-parallel coordinate of the other end of a transfer",
    "peer_stage": "stage at the other end of a transfer",
    "bytes": "size of a transfer",
}
"""The parts of an identity, with their meaning. A result below 0 means that a slice has none."""

TEXTS: dict[str, str] = {
    "name": "name", "category": "category", "thread": "thread_name", "process": "process_name", "tid": "thread",
    "pid": "process",
}  # fmt: skip
"""What patterns can be applied to, and the column of the slices. Arguments are ``args.KEY``."""

MOST_BITS = 64


@dataclass(frozen=True)
class Rule:
    """Slices whose texts match `where` (by column) are spans of `kind`; `fields` precede those of the mapping.

    Without a kind, `names` states it for each name; without a lane, the span is on the lane of its kind.
    """

    kind: str | None = None
    lane: str | None = None
    where: tuple[tuple[str, TextPattern], ...] = ()
    names: NamePattern | None = None
    fields: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def columns(self) -> frozenset[str]:
        """The columns of slices that its patterns and expressions need."""
        of_fields = (column for each in self.fields.values() for column in each.columns)
        return frozenset([*(column for column, _ in self.where), *of_fields])


@dataclass(frozen=True)
class EventMapping:
    """A mapping: its rules, the first of which that matches decides, and fields that hold for all of them.

    `texts` are patterns whose numbers are fields or names for expressions (``thread.pp``), `only` restricts the slices.
    A shipped mapping is recognized by its `signature`, texts that a trace must have, and by the arguments that some
    slices of these names must have. `source` states where the mapping comes from, for messages. With `merges`, the
    slices of one action that no other action of its kind divides are one span. With `counts_microbatches`, actions and
    transfers that state no micro-batch are numbered in the order of their step.
    """

    source: str
    rules: tuple[Rule, ...]
    fields: Mapping[str, Expression] = field(default_factory=dict)
    texts: tuple[tuple[str, TextPattern], ...] = ()
    only: tuple[tuple[str, TextPattern], ...] = ()
    signature: tuple[tuple[str, TextPattern], ...] = ()
    signature_arguments: tuple[str, ...] = ()
    merges: bool = False
    counts_microbatches: bool = False

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments of events that it needs."""
        columns = {column for each in self.fields.values() for column in each.columns}
        columns |= {column for rule in self.rules for column in rule.columns} | {
            column for column, _ in self.only
        }
        needed = {column.removeprefix(f"{ARGS}.") for column in columns if column.startswith(f"{ARGS}.")}
        return frozenset(needed | set(self.signature_arguments))

    def with_fields(
        self, fields: Mapping[str, Expression], only: Iterable[tuple[str, TextPattern]]
    ) -> EventMapping:
        """Return the mapping with `fields` in place of its own, also in its rules, and restricted by `only`."""
        rules = tuple(
            replace(rule, fields={name: each for name, each in rule.fields.items() if name not in fields})
            for rule in self.rules
        )
        return replace(self, rules=rules, fields={**self.fields, **fields}, only=(*self.only, *only))


class MappingRequest(NamedTuple):
    """What a call states about traces of other tools: a mapping, fields that replace its own, and a restriction."""

    mapping: EventMapping | None = None
    fields: Mapping[str, Expression] = MappingProxyType({})
    only: tuple[tuple[str, TextPattern], ...] = ()


def pattern_mapping(pattern: str) -> EventMapping:
    """Return the mapping of slices whose names match a pattern such as ``{kind}_{microbatch}``. Raises UsageError."""
    return EventMapping(pattern, (Rule(names=NamePattern(pattern)),))


def parse_fields(given: Mapping[str, object], where: str) -> dict[str, Expression]:
    """Return the expressions of fields; `where` is the option or file for messages. Raises UsageError."""
    found = {}
    for name, text in given.items():
        if name not in FIELDS:
            raise UsageError.mapping_malformed(
                f"{where} {name!r}"[:120], f"one of the fields {', '.join(FIELDS)}"
            )
        if not _is_text(text):
            raise UsageError.mapping_malformed(f"{where} {name}", "an expression, such as 'args.microbatch'")
        found[name] = parse_expression(str(text))
    return found


def parse_texts(given: Mapping[str, object], where: str) -> tuple[tuple[str, TextPattern], ...]:
    """Return the patterns of texts by the column that they are applied to. Raises UsageError."""
    found = []
    for name, text in given.items():
        if name not in TEXTS and not (name.startswith(f"{ARGS}.") and len(name) > len(ARGS) + 1):
            expected = f"one of {', '.join(TEXTS)} and {ARGS}.KEY"
            raise UsageError.mapping_malformed(f"{where} {name!r}"[:120], expected)
        if not _is_text(text):
            raise UsageError.mapping_malformed(f"{where} {name}", "a text, such as 'forward*'")
        found.append((TEXTS.get(name, name), TextPattern(str(text))))
    return tuple(found)


def _is_text(value: object) -> bool:
    """Return whether a value is a text or a number that can be one: Python converts none of thousands of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() <= MOST_BITS
    return isinstance(value, str)
