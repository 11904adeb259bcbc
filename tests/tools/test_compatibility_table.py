"""The committed table of signatures, held against the points and the schedules that the recorder knows."""

from __future__ import annotations

import pytest
from tools.compatibility.catalog import SOURCES
from tools.compatibility.cells import read_rows, rows_of, silent_cells
from tools.compatibility.declared import applies, reasons_for_refusal
from tools.compatibility.schedules import ACTIONS, MODULES, NO_SCHEDULES, SCHEDULES, unknown
from tools.compatibility.supported import is_supported
from tools.compatibility.table import FOLDER, read_table, write_table

from stagescope.record.points import all_parts

TABLES = {source.name: read_table(source.name) for source in SOURCES}
RELEASES = [(source, version) for source in SOURCES for version in TABLES[source.name].releases]
IDS = [f"{source.name}-{version}" for source, version in RELEASES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_table_has_every_declared_point(source):
    missing = set(source.points) - set(TABLES[source.name].points)
    assert not missing, "run: python -m tools.compatibility update"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_modules_of_declared_points_are_read(source):
    """Otherwise a point would be absent from the table although releases have it."""
    assert [name for name in source.points if not source.reads(name)] == []


@pytest.mark.parametrize(("source", "version"), RELEASES, ids=IDS)
def test_every_schedule_of_a_release_is_known(source, version):
    assert unknown(source.name, TABLES[source.name].releases[version]) == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_what_is_known_exists_in_some_release(source):
    snapshots = TABLES[source.name].releases.values()
    known = SCHEDULES[source.name] | NO_SCHEDULES.get(source.name, frozenset())
    assert known <= {each for snapshot in snapshots for each in snapshot.schedules}
    assert ACTIONS.get(source.name, frozenset()) <= {each for s in snapshots for each in s.actions}
    assert MODULES.get(source.name, frozenset()) <= {each for s in snapshots for each in s.modules}


@pytest.mark.parametrize(("source", "version"), RELEASES, ids=IDS)
def test_a_release_fits_or_is_outside_the_supported_range(source, version):
    """Either all parts of a release fit, or the recorder refuses it and names a range that does not contain it."""
    snapshot = TABLES[source.name].releases[version]
    for part in all_parts():
        if applies(part, source.packages, snapshot):
            reasons = reasons_for_refusal(part, source.packages, snapshot)
            assert bool(reasons) != is_supported(part, source, version), (
                part.trigger,
                part.supported,
                reasons,
            )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_table_is_as_the_command_writes_it(source, tmp_path):
    write_table(source.name, TABLES[source.name], tmp_path)
    name = f"{source.name}.json"
    assert (tmp_path / name).read_text() == (FOLDER / name).read_text()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_row_states_how_each_schedule_of_each_release_is_recorded(source):
    """Applies to the frameworks that docs/compatibility.md has."""
    rows = read_rows()
    if rows_of(source, rows):
        assert silent_cells(source, TABLES[source.name], rows) == []
