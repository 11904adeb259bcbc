"""The committed table: one JSON file per source, in which each text is stored once with the releases that have it."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .registry import version_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .catalog import Source
    from .signatures import Sources

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "compatibility"
TO = " .. "
LISTS = ("schedules", "actions", "modules")


class Snapshot(NamedTuple):
    """What one release defines: the definition of each declared point that it has, and its lists.

    `schedules` are classes and functions, ``package.module:name``; `modules` are dotted names.
    """

    points: Mapping[str, str]
    schedules: Sequence[str]
    actions: Sequence[str]
    modules: Sequence[str]


class Table(NamedTuple):
    """One source: the points that were looked up, and a snapshot per release, oldest first."""

    points: Sequence[str]
    releases: Mapping[str, Snapshot]


def take_snapshot(source: Source, sources: Sources) -> Snapshot:
    """Return what the sources of one release define."""
    folders = tuple(
        folder.removesuffix(".py").replace("/", ".").rstrip(".") for folder in source.schedules_in
    )
    found = {point: sources.definition(point) for point in source.points}
    schedules = [*sources.derived_classes(source.bases)] if source.bases else []
    if source.functions:
        schedules += sources.functions(source.functions)
    return Snapshot(
        {point: text for point, text in found.items() if text is not None},
        sorted(schedules),
        sources.members(source.actions) if source.actions else [],
        [module for module in sources.modules if folders and module.startswith(folders)],
    )


def difference(old: Snapshot, new: Snapshot) -> list[str]:
    """Return one line for each thing that differs between two releases."""
    lines = [
        f"{point}: {old.points.get(point, 'absent')} -> {new.points.get(point, 'absent')}"
        for point in sorted({*old.points, *new.points})
        if old.points.get(point) != new.points.get(point)
    ]
    for name in LISTS:
        before, after = set(getattr(old, name)), set(getattr(new, name))
        lines += [f"new in {name}: {each}" for each in sorted(after - before)]
        lines += [f"no longer in {name}: {each}" for each in sorted(before - after)]
    return lines


def read_table(name: str, folder: Path = FOLDER) -> Table:
    """Return the table of a source; an empty one if there is no file."""
    path = folder / f"{name}.json"
    if not path.exists():
        return Table([], {})
    stored = json.loads(path.read_text())
    releases: list[str] = stored["releases"]
    points: dict[str, dict[str, str]] = {release: {} for release in releases}
    for point, definitions in stored["points"].items():
        for text, ranges in definitions.items():
            for release in _expand(ranges, releases):
                points[release][point] = text
    lists = {name: _lists(stored[name], releases) for name in LISTS}
    snapshots = {
        release: Snapshot(points[release], *(lists[name][release] for name in LISTS)) for release in releases
    }
    return Table(list(stored["points"]), snapshots)


def write_table(name: str, table: Table, folder: Path = FOLDER) -> None:
    """Write the table of a source."""
    releases = sorted(table.releases, key=version_key)
    points: dict[str, dict[str, str]] = {}
    for point in sorted(table.points):
        texts = [table.releases[release].points.get(point) for release in releases]
        distinct = dict.fromkeys(text for text in texts if text is not None)
        points[point] = {text: _ranges([each == text for each in texts], releases) for text in distinct}
    stored: dict[str, Any] = {"releases": releases, "points": points}
    for each in LISTS:
        members = sorted(
            {member for snapshot in table.releases.values() for member in getattr(snapshot, each)}
        )
        stored[each] = {
            member: _ranges([member in getattr(table.releases[r], each) for r in releases], releases)
            for member in members
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n")


def _ranges(has: Iterable[bool], releases: Sequence[str]) -> str:
    """Return the releases for which `has` is true, as ``2.5.0 .. 2.7.1, 2.9.0``."""
    parts = []
    for is_in, group in groupby(zip(has, releases, strict=True), key=lambda pair: pair[0]):
        names = [release for _, release in group]
        if is_in:
            parts.append(names[0] if len(names) == 1 else f"{names[0]}{TO}{names[-1]}")
    return ", ".join(parts)


def _expand(ranges: str, releases: Sequence[str]) -> list[str]:
    found: list[str] = []
    for part in ranges.split(", ") if ranges else ():
        first, _, last = part.partition(TO)
        found += releases[releases.index(first) : releases.index(last or first) + 1]
    return found


def _lists(stored: Mapping[str, str], releases: Sequence[str]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {release: [] for release in releases}
    for member, ranges in stored.items():
        for release in _expand(ranges, releases):
            lists[release].append(member)
    return lists
