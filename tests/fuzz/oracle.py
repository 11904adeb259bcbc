"""Read one mutated sample and judge the outcome.

Accepted are the same result, a result with a diagnostic that the intact sample does not have, and one clear error.
A different result without such a diagnostic is accepted where nothing reveals the damage. Everything else is a failure.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope import api
from stagescope.cli import main
from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from stagescope.model import Timeline

SAME, DIAGNOSED, REFUSED, CHANGED = "same", "with a diagnostic", "refused", "changed"
TRACEBACK, SILENT, UNCLEAR = "traceback", "silent", "unclear error"
ACCEPTED = (SAME, DIAGNOSED, REFUSED, CHANGED)
TABLES = ("spans", "ranks", "steps", "clocks", "counters")
LONGEST_MESSAGE = 3_000


@dataclass(frozen=True)
class Intact:
    """The result of the intact sample."""

    tables: tuple[pl.DataFrame, ...]
    diagnostics: Counter[tuple[object, ...]]
    codes: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """What reading a mutated sample led to: one of ACCEPTED, or a kind of failure with its details."""

    kind: str
    details: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the outcome is not accepted."""
        return self.kind not in ACCEPTED


def read_intact(folder: Path) -> Intact:
    """Return the result of an intact sample."""
    timeline = api.read(folder)
    codes = frozenset(code for code in timeline.diagnostics["code"] if code is not None)
    return Intact(_tables(timeline), _diagnostics(timeline), codes)


def judge(paths: Sequence[Path], intact: Intact, *, is_revealed: bool, thorough: bool) -> Outcome:
    """Return the outcome of reading `paths`; with `thorough`, also of the analyses and of `stagescope show`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            timeline = api.read(*paths)
            is_same = all(a.equals(b) for a, b in zip(_tables(timeline), intact.tables, strict=True))
            if not is_same or thorough:
                report = api.analyze(timeline, explain=thorough)
                if thorough:
                    api.report_json(report)
                    _show(paths)
    except StagescopeError as error:
        return _refused(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a panic of Polars is not an Exception
        return Outcome(TRACEBACK, traceback.format_exc())
    if is_same:
        return Outcome(SAME)
    if _is_diagnosed(timeline, intact):
        return Outcome(DIAGNOSED)
    return Outcome(SILENT, _difference(timeline, intact)) if is_revealed else Outcome(CHANGED)


def _refused(error: StagescopeError) -> Outcome:
    text = str(error)
    if not text or len(text) > LONGEST_MESSAGE or not text.isprintable():
        return Outcome(UNCLEAR, repr(text[:LONGEST_MESSAGE]))
    return Outcome(REFUSED, text)


def _show(paths: Sequence[Path]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["show", *map(str, paths)])
    assert code in (0, 1), f"exit code {code}"


def _tables(timeline: Timeline) -> tuple[pl.DataFrame, ...]:
    return tuple(getattr(timeline, name).drop("source", strict=False) for name in TABLES)


def _diagnostics(timeline: Timeline) -> Counter[tuple[object, ...]]:
    return Counter(timeline.diagnostics.select("severity", "code", "rank", "count").rows())


def _is_diagnosed(timeline: Timeline, intact: Intact) -> bool:
    """Return whether there is a diagnostic that the intact sample does not have.

    Of the information that is always given, such as how well clocks were aligned, only new codes count.
    """
    new = _diagnostics(timeline) - intact.diagnostics
    return any(severity != "info" or code not in intact.codes for severity, code, *_ in new)


def _difference(timeline: Timeline, intact: Intact) -> str:
    lines = []
    for name, table, before in zip(TABLES, _tables(timeline), intact.tables, strict=True):
        if table.height != before.height:
            lines.append(f"{name}: {before.height} rows, after the mutation {table.height}")
            continue
        for column in table.columns:
            differs = table[column].ne_missing(before[column])
            if differs.any():
                was, now = (one[column].filter(differs)[:3].to_list() for one in (before, table))
                lines.append(f"{name}.{column}: {was} is now {now}")
    return "\n".join(lines)
