"""Conditions that a user writes, such as ``bubble>0.3`` or ``iteration>1.2s for 20 steps``."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.durations import UNITS_NS
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

WRITTEN = re.compile(
    r"\s*(?P<name>\w+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>%|[a-zµ]*)\s*"
)
LASTING = re.compile(r"(?P<condition>.*?)\s+for\s+(?P<steps>\d{1,9})\s+steps?\s*")


class Condition(NamedTuple):
    """One condition, as text and parsed; a limit on a time is in nanoseconds."""

    text: str
    quantity: str
    comparison: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether it holds for a value of its quantity."""
        return COMPARISONS[self.comparison](value, self.limit)


class LastingCondition(NamedTuple):
    """A condition that has to hold in so many steps in a row."""

    condition: Condition
    steps: int

    @property
    def text(self) -> str:
        """How a user would write it."""
        plural = "s" if self.steps > 1 else ""
        return f"{self.condition.text} for {self.steps} step{plural}"


def parse_condition(text: str, quantities: Mapping[str, bool], option: str) -> Condition:
    """Return a parsed condition: a quantity, > >= < or <=, and a number, with % for a fraction or a unit for a time.

    `quantities` are those that can be named, and whether each is a time; `option` is the option that an error names.
    Raises UsageError for malformed text and for an unknown quantity; its hint lists the quantities.

    >>> parse_condition("bubble > 30%", {"bubble": False}, "--fail-if")
    Condition(text='bubble > 30%', quantity='bubble', comparison='>', limit=0.3)
    >>> parse_condition("step>=1.5ms", {"step": True}, "--fail-if").limit
    1500000.0
    """
    found = WRITTEN.fullmatch(text)
    if found is None:
        raise UsageError.condition_malformed(option, text, quantities)
    name = found["name"]
    if name not in quantities:
        raise UsageError.quantity_unknown(option, text, name, quantities)
    scales = UNITS_NS if quantities[name] else {"": 1.0, "%": 0.01}
    if found["unit"] not in scales:
        raise UsageError.condition_unit(option, text, (unit or "no unit" for unit in scales))
    limit = round(float(found["number"]) * scales[found["unit"]], 12)
    return Condition(text.strip(), name, found["sign"], limit)


def parse_lasting_condition(text: str, quantities: Mapping[str, bool], option: str) -> LastingCondition:
    """Return a condition that may end with "for N steps"; without, one step is enough. Raises like parse_condition.

    >>> parse_lasting_condition("bubble>0.35 for 20 steps", {"bubble": False}, "--alert").steps
    20
    """
    found = LASTING.fullmatch(text)
    if found is None:
        return LastingCondition(parse_condition(text, quantities, option), 1)
    if not int(found["steps"]):
        raise UsageError.condition_malformed(option, text, quantities)
    return LastingCondition(parse_condition(found["condition"], quantities, option), int(found["steps"]))
