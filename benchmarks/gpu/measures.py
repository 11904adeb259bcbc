"""What a part of the check on a GPU measures: values with the limits that are expected of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class Settings:
    """How long the parts measure: seconds of parts F and G, copies in F, kernels of E and children of I."""

    error_s: float = 20.0
    drift_s: float = 60.0
    copies: int = 200
    kernels: int = 10_000
    forks: int = 200

    def shorten(self) -> None:
        """Measure only as long as a dry run needs."""
        self.error_s, self.drift_s, self.copies, self.kernels, self.forks = 0.3, 3.0, 5, 500, 5


SETTINGS = Settings()


class Measure(NamedTuple):
    """A measured value. It is as expected from `low` to `high`, both in `unit`; None is no limit."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None

    @property
    def is_expected(self) -> bool:
        """Whether the value is within its limits; an unknown value, NaN, is not."""
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return above and below and not math.isnan(self.value)

    @property
    def expectation(self) -> str:
        """The limits as text, empty if there are none.

        >>> Measure("delay", 7.0, "us", 6, 20).expectation, Measure("error", 0.4, "us", high=5).expectation
        ('6 to 20', 'at most 5')
        """
        if self.low is not None and self.high is not None:
            return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"

    def row(self) -> dict[str, Any]:
        """Return the measure as a JSON object."""
        return {**self._asdict(), "is_expected": self.is_expected}


class Unavailable(Exception):  # noqa: N818  # it is no error
    """The device or torch cannot do what a part measures; the message states what."""


def quantile(values: list[float], fraction: float) -> float:
    """Return a quantile of some values, NaN if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else math.nan
