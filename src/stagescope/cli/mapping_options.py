"""The options ``--map``, ``--mapping`` and ``--only``: how the slices of traces of other tools become spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAPPING_OPTIONS = (
    click.option(
        "--map",
        "map",
        metavar="FIELD=EXPRESSION",
        multiple=True,
        help="Where a Chrome trace states a part of the identity of actions, such as microbatch=args.microbatch or "
        "stage='args.model_chunk*4+pid'; may be repeated.",
    ),
    click.option(
        "--mapping",
        metavar="FILE",
        help="TOML file that maps the slices of a Chrome trace to spans, or the name of a shipped one.",
    ),
    click.option(
        "--only",
        metavar="NAME=PATTERN",
        multiple=True,
        help="Slices of a Chrome trace to read, such as tid=1 or category='gpu*'; may be repeated.",
    ),
)


def mapping_facts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `stagescope.read` for the options, which are taken out of the arguments of a command."""
    named = {name: _named_values(f"--{name}", arguments.pop(name)) for name in ("map", "only")}
    return {"mapping": arguments.pop("mapping"), **named}


def _named_values(option: str, given: Sequence[str]) -> dict[str, str] | None:
    """Return the values of a repeated option NAME=VALUE by name, None if it was not given. Raises UsageError."""
    parts = [text.partition("=") for text in given]
    for text, (name, sign, value) in zip(given, parts, strict=True):
        if not (name.strip() and sign and value.strip()):
            raise UsageError.value_malformed(option, text, "NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in parts} or None
