"""Parsing of costs on the command line: ``F=1,B=2,W=1`` or ``F=2.5ms,B=5ms,O=300us``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from stagescope.model.simulated import COST_UNIT_NS
from stagescope.vocabulary.durations import UNITS_NS
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.costs import Costs

NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward_input",
    "W": "backward_weight",
    "FB": "overlapped",
    "O": "optimizer",
}
AMOUNT_NS = {"": COST_UNIT_NS, **UNITS_NS}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|s|)")


class GivenCosts(NamedTuple):
    """The costs, and whether they were numbers without units: then 1 is simulated as 1 ms and shown as 1."""

    costs: Costs
    in_cost_units: bool


def parse_costs(text: str, hop: str) -> GivenCosts:
    """Return the costs in ``--cost`` and ``--hop``, each one number, or one per stage separated by ``:``.

    Raises UsageError for invalid text, for a repeated name, for a mix of numbers with and without units, and for
    units without a cost F, since the default F = 1 has no unit.
    """
    from stagescope.schedules.costs import Costs

    words = [word for word in text.split(",") if word.strip()]
    amounts: dict[str, tuple[int, ...]] = {}
    units: set[bool] = set()
    for name, value in [*map(_named, words), *([("hop", hop)] if hop else [])]:
        if name in amounts:
            raise UsageError.cost_twice(name)
        amounts[name], plain = _amounts(name, value)
        units |= plain
    if len(units) > 1:
        raise UsageError.costs_mixed()
    if units == {False} and "forward" not in amounts:
        raise UsageError.cost_without_forward()
    in_cost_units = units != {False}
    given = {name: values[0] if len(values) == 1 else values for name, values in amounts.items()}
    return GivenCosts(Costs(**({"forward": COST_UNIT_NS} | given)), in_cost_units)  # type: ignore[arg-type]  # the names are those of Costs


def _named(word: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in word.partition("="))
    if not equals or name.upper() not in NAMES:
        raise UsageError.cost_malformed(word.strip(), NAMES)
    return NAMES[name.upper()], value


def _amounts(name: str, text: str) -> tuple[tuple[int, ...], set[bool]]:
    """Return the nanoseconds of one cost, and whether its numbers had no unit; a 0 without unit fits both."""
    amounts = list(_parts(name, text))
    plain = {unit == "" for number, unit in amounts if number or unit}
    return tuple(round(number * AMOUNT_NS[unit]) for number, unit in amounts), plain


def _parts(name: str, text: str) -> Iterator[tuple[Fraction, str]]:
    for part in text.split(":"):
        amount = AMOUNT.fullmatch(part.strip())
        if amount is None:
            raise UsageError.cost_malformed(f"{name}={text}", NAMES)
        yield Fraction(amount[1]), amount[2]
