"""Compare the tables of the databases of one run: what the others have and one lacks was probably lost.

A profiler writes most tables only if it collected something for them, so a single database does not show whether one
is missing. The ranks of one run were profiled alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Tables(NamedTuple):
    """The names of the tables of one database, and its rank if that is known already."""

    source: str
    names: frozenset[str]
    rank: int | None = None


def missing_tables(databases: Sequence[Tables], names: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield an error for each of `names` that a database lacks and others of the run have."""
    for name in names:
        lacking = [database for database in databases if name not in database.names]
        having = len(databases) - len(lacking)
        for database in lacking if having else ():
            text = f"table {name} is missing, which {having} of {len(databases)} profiles of the run have"
            yield Diagnostic(
                "error", text, database.source, database.rank, f"table {name}", code="database.table_missing"
            )


def absent_tables(databases: Sequence[Tables], uses: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield an info for each table that no database of the run has; `uses` states what its absence means."""
    for name, meaning in uses.items():
        if databases and not any(name in database.names for database in databases):
            text = f"no profile of the run has the table {name}: {meaning}"
            yield Diagnostic(
                "info",
                text,
                databases[0].source,
                location=f"table {name}",
                count=len(databases),
                code="database.table_absent",
            )
