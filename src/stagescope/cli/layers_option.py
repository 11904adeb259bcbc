"""The option --layers: the transformer layers of every stage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = re.compile(r"\s*[1-9]\d*\s*(,\s*\d+\s*)*")


def layers_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--layers N[,N...]`; the command gets the numbers as `layers`, none without the option."""
    return click.option(
        "--layers",
        metavar="N[,N...]",
        default="",
        callback=lambda _context, _option, text: parse_layers(text),
        help="Transformer layers of the model, or of every stage in the order of the model; the report then proposes "
        "a layout of the layers.",
    )(function)


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the numbers of layers; raises UsageError for malformed text.

    >>> parse_layers("8,8,7"), parse_layers("")
    ((8, 8, 7), ())
    """
    if not text:
        return ()
    if not NUMBERS.fullmatch(text):
        raise UsageError.layers_malformed(text)
    return tuple(int(each) for each in text.split(","))
