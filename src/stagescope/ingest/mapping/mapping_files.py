"""Files with a mapping (TOML or JSON), and the mappings that are shipped with stagescope.

The shipped ones are JSON, which is parsed faster.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.mapping.mapping import EventMapping, Rule, parse_fields, parse_texts
from stagescope.ingest.streams import open_stream
from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.kinds import KIND_NAMES, LANES

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from stagescope.ingest.mapping.patterns import TextPattern

READY = Path(__file__).parent / "ready"
MOST_BYTES = 1 << 18
MOST_RULES = 200
MOST_DOTS = 64
"""In one line of TOML: the time for parsing a dotted key grows with the square of its parts."""

DEEPEST = 8
"""Nested tables of patterns, such as those of the arguments of events."""

KEYS = ("about", "merge", "count_microbatches", "fields", "texts", "only", "recognize", "rules")
RULE_KEYS = ("kind", "lane", "fields")


@cache
def ready_mappings() -> Mapping[str, EventMapping]:
    """Return the mappings that are recognized without an option, by name."""
    paths = sorted(READY.glob("*.json"))
    return {path.stem: _mapping(_parsed(path.read_bytes(), path.name), path.stem) for path in paths}


def load_mapping(given: str | os.PathLike[str]) -> EventMapping:
    """Return the mapping in a file, or the shipped one of that name.

    Raises InputError for a file that cannot be read, and UsageError for one that is no mapping.
    """
    if str(given) in _ready_names():
        return ready_mappings()[str(given)]
    path = Path(given)
    if not path.exists():
        raise InputError(
            f"no such mapping: {path}", f"give a TOML file, or one of {', '.join(_ready_names())}"
        )
    with open_stream(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise UsageError.mapping_malformed(str(path), f"at most {MOST_BYTES >> 10} KiB")
    return _mapping(_parsed(text, str(path)), str(path))


def _ready_names() -> list[str]:
    return sorted(path.stem for path in READY.glob("*.json"))


def _parsed(text: bytes, where: str) -> dict[str, Any]:
    if where.endswith(".json"):
        return _parsed_json(text, where)
    if any(line.count(b".") > MOST_DOTS for line in text.splitlines()):
        raise UsageError.mapping_malformed(where, f"at most {MOST_DOTS} dots in a line")
    toml = _toml_parser()
    try:
        found: dict[str, Any] = toml.loads(text.decode())
    except (
        ValueError,
        RecursionError,
    ) as reason:  # TOMLDecodeError, not UTF-8, and numbers of thousands of digits
        raise UsageError.mapping_malformed(where, f"TOML: {reason}") from None
    return found


def _parsed_json(text: bytes, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise UsageError.mapping_malformed(where, f"JSON: {reason}") from None
    return found


def _toml_parser() -> Any:
    try:
        return import_module("tomllib")
    except ImportError:  # Python 3.10, for which pyproject.toml requires tomli
        return import_module("tomli")


def _mapping(found: Mapping[str, Any], where: str) -> EventMapping:
    _check_keys(found, KEYS, where)
    recognize = _table(found, "recognize", where)
    rules = found.get("rules", [])
    if not isinstance(rules, list) or not rules or len(rules) > MOST_RULES:
        raise UsageError.mapping_malformed(f"{where}: rules", f"1 to {MOST_RULES} tables [[rules]]")
    return EventMapping(
        where,
        tuple(_rule(rule, f"{where}: rule {number}") for number, rule in enumerate(rules, 1)),
        parse_fields(_table(found, "fields", where), f"{where}: fields"),
        parse_texts(_flat(_table(found, "texts", where), where), f"{where}: texts"),
        parse_texts(_flat(_table(found, "only", where), where), f"{where}: only"),
        _signature(recognize, f"{where}: recognize"),
        _strings(recognize, "args", where),
        merges=found.get("merge") is True,
        counts_microbatches=found.get("count_microbatches") is True,
    )


def _rule(rule: Any, where: str) -> Rule:
    if not isinstance(rule, dict):
        raise UsageError.mapping_malformed(where, "a table")
    texts = _flat({key: value for key, value in rule.items() if key not in RULE_KEYS}, where)
    name = texts.get("name")
    names = None
    if isinstance(name, str) and "{kind}" in name:
        names = NamePattern(str(texts.pop("name")))
    kind = rule.get("kind")
    if (kind is None) == (names is None) or (kind is not None and kind not in KIND_NAMES):
        raise UsageError.mapping_malformed(
            f"{where}: kind", f"{{kind}} in its name, or one of {', '.join(KIND_NAMES)}"
        )
    lane = rule.get("lane")
    if lane is not None and lane not in LANES:
        raise UsageError.mapping_malformed(f"{where}: lane", f"one of {', '.join(LANES)}")
    if not texts and names is None:
        raise UsageError.mapping_malformed(
            where, "a pattern for the name, category, thread, process or an argument"
        )
    fields = parse_fields(_table(rule, "fields", where), f"{where}: fields")
    return Rule(kind, lane, parse_texts(texts, where), names, fields)


def _flat(table: Mapping[str, Any], where: str, depth: int = DEEPEST) -> dict[str, object]:
    """Return a table with the tables in it as dotted names: {"args": {"op": "F"}} is {"args.op": "F"}."""
    if depth == 0:
        raise UsageError.mapping_malformed(where, f"at most {DEEPEST} nested tables")
    flat: dict[str, object] = {}
    for key, value in table.items():
        below = _flat(value, where, depth - 1) if isinstance(value, dict) else None
        flat |= {key: value} if below is None else {f"{key}.{name}": each for name, each in below.items()}
    return flat


def _table(found: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = found.get(key, {})
    if not isinstance(table, dict):
        raise UsageError.mapping_malformed(f"{where}: {key}", "a table")
    return table


def _strings(found: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = found.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UsageError.mapping_malformed(f"{where}: {key}", "a list of texts")
    return tuple(values)


def _signature(recognize: Mapping[str, Any], where: str) -> tuple[tuple[str, TextPattern], ...]:
    """Return the texts that a trace must have, each with the column that it is looked for in."""
    texts = [("name", text) for text in _strings(recognize, "names", where)]
    texts += [("process", text) for text in _strings(recognize, "processes", where)]
    return tuple(pattern for column, text in texts for pattern in parse_texts({column: text}, where))


def _check_keys(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            raise UsageError.mapping_malformed(
                f"{where}: {key[:60]!r}", f"one of the keys {', '.join(known)}"
            )
