from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from ascend_profiles import Cluster, edit, write_cluster
from ascend_truth import timeline_of_truth
from stagescope.exporters.other_tools import ascend_databases
from stagescope.exporters.other_tools.ascend_databases import ChartOptions, Target, copy_targets, write_chart
from stagescope.vocabulary.errors import OutputError

ROWS = "SELECT name, startNs, endNs, type FROM StepTaskInfo ORDER BY startNs"
IDS = "SELECT s.value, o.opConnectionId FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.opName"

KILLED = """
import os, signal, sys
from pathlib import Path
import polars as pl
from stagescope.exporters.other_tools import ascend_databases
from stagescope.model import SPANS, empty_timeline
from stagescope.model.validate import conform

rows = pl.DataFrame({"rank": [0] * 200_000}).with_columns(
    lane=pl.lit("compute"), kind=pl.lit("forward"), start_ns=pl.int_range(pl.len()), end_ns=pl.int_range(pl.len()) + 1
)
path = Path(sys.argv[1])
ascend_databases._fill_ids = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ascend_databases.write_chart(
    empty_timeline().with_spans(conform(rows, SPANS)),
    [ascend_databases.Target(0, path, path)],
    ascend_databases.ChartOptions(),
)
"""


def ask(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Profiles:
    def __init__(self, root, **words):
        self.root, self.cluster = root, Cluster(**words)
        self.truth = write_cluster(root, self.cluster)
        self.timeline = timeline_of_truth(self.cluster, self.truth)
        self.databases = self.truth.databases

    def copies(self, place, **words):
        return write_chart(
            self.timeline, copy_targets(self.databases, self.root, place), ChartOptions(**words)
        )

    def in_place(self, **words):
        targets = [Target(rank, path, path) for rank, path in self.databases.items()]
        return write_chart(self.timeline, targets, ChartOptions(**words))


@pytest.fixture
def profiles(tmp_path):
    return lambda **words: Profiles(tmp_path / "profiles", **({"pp": 2, "microbatches": 3} | words))


def test_copies_have_the_layout_of_the_profiles_which_stay_unchanged(profiles, tmp_path):
    given = profiles()
    before = {rank: digest(path) for rank, path in given.databases.items()}
    written = given.copies(tmp_path / "out")
    assert {rank: digest(path) for rank, path in given.databases.items()} == before
    for each in written.ranks:
        assert each.path == tmp_path / "out" / given.databases[each.rank].relative_to(given.root)
        assert len(ask(each.path, ROWS)) == each.marks == 2 * 2 * 3
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {path.name for path in given.databases.values()}


def test_the_table_has_the_times_of_the_device(profiles):
    given = profiles(steps=1)
    given.in_place()
    actions = given.truth.actions.filter(pl.col("rank") == 1).sort("start_ns")
    names = {"forward": ("FP", 0), "backward": ("BP", 1)}
    expected = [
        (names[kind][0], start_ns, end_ns, names[kind][1])
        for kind, start_ns, end_ns in actions.select("kind", "start_ns", "end_ns").iter_rows()
    ]
    assert ask(given.databases[1], ROWS) == expected


def test_writes_ids_of_operations_and_removes_old_ones(profiles):
    given = profiles()
    path = given.databases[0]
    edit(
        path,
        "ALTER TABLE COMMUNICATION_OP ADD COLUMN opConnectionId TEXT",
        "UPDATE COMMUNICATION_OP SET opConnectionId = 'old'",
    )
    lost = given.truth.transfers.filter(pl.col("rank") == 1)["name"][0]
    spans = given.timeline.spans.filter((pl.col("rank") != 1) | (pl.col("name") != lost))
    given.timeline = given.timeline.with_spans(spans)
    given.in_place()
    ids = dict(ask(path, IDS))
    assert sum(each is None for each in ids.values()) == 1
    assert "old" not in ids.values()
    assert len({*ids.values()}) == len(ids)


def test_writing_twice_gives_the_same_rows(profiles):
    given = profiles()
    given.in_place()
    first = ask(given.databases[0], ROWS), ask(given.databases[0], IDS)
    given.in_place()
    assert (ask(given.databases[0], ROWS), ask(given.databases[0], IDS)) == first


def test_writing_one_step_keeps_the_ids_of_other_steps(profiles):
    given = profiles(steps=3)
    given.in_place()
    whole = dict(ask(given.databases[0], IDS))
    given.in_place(step=1)
    assert dict(ask(given.databases[0], IDS)) == whole
    assert len(ask(given.databases[0], ROWS)) == 2 * 3


def test_changes_in_the_write_ahead_log_are_copied(profiles, tmp_path):
    given = profiles()
    with closing(sqlite3.connect(given.databases[0])) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE late (value TEXT)")
        connection.execute("INSERT INTO late VALUES ('in the log')")
        connection.commit()
        written = given.copies(tmp_path / "out")
    copy = written.ranks[0].path
    assert ask(copy, "SELECT value FROM late") == [("in the log",)]
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_files_next_to_the_databases_are_copied(profiles, tmp_path):
    given = profiles()
    folder = given.databases[0].parents[1]
    (folder / "profiler_info_0.json").write_text("{}")
    (folder / "trace_view.json").write_text("large")
    given.copies(tmp_path / "out")
    copied = tmp_path / "out" / folder.name
    assert sorted(path.name for path in copied.iterdir()) == [
        "ASCEND_PROFILER_OUTPUT",
        "profiler_info_0.json",
    ]


def test_a_lone_database_is_copied_alone(profiles, tmp_path):
    given = profiles()
    alone = tmp_path / "monitor" / "msmonitor_4711_20251120090000000_0.db"
    alone.parent.mkdir()
    shutil.copyfile(given.databases[0], alone)
    (tmp_path / "profiler_info_0.json").write_text("{}")
    targets = copy_targets({0: alone}, alone.parent, tmp_path / "out" / "copy")
    (written,) = write_chart(given.timeline, targets, ChartOptions()).ranks
    assert written.path == tmp_path / "out" / "copy" / alone.name
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["copy"]


def test_a_profile_without_communication_gets_the_table_only(profiles):
    given = profiles(transfers="none")
    edit(given.databases[0], "DROP TABLE COMMUNICATION_OP")
    assert [each.paired for each in given.in_place().ranks] == [0, 0]
    assert len(ask(given.databases[0], ROWS)) == 12


def test_a_read_only_database_is_refused_before_any_is_changed(profiles):
    given = profiles()
    given.databases[1].chmod(0o444)
    before = digest(given.databases[0])
    with pytest.raises(OutputError, match=rf"{given.databases[1].name} is read-only; nothing was changed"):
        given.in_place()
    assert digest(given.databases[0]) == before


def test_a_database_in_use_is_refused_before_any_is_changed(profiles, monkeypatch):
    monkeypatch.setattr(ascend_databases, "LOCK_SECONDS", 0.01)
    given = profiles()
    before = digest(given.databases[0])
    with closing(sqlite3.connect(given.databases[1])) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputError, match=rf"{given.databases[1].name} is in use \(database is locked\)"):
            given.in_place()
    assert digest(given.databases[0]) == before


def test_a_damaged_database_is_reported_and_the_others_are_written(profiles, tmp_path):
    given = profiles()
    given.databases[0].write_bytes(given.databases[0].read_bytes()[:5000])
    written = given.copies(tmp_path / "out")
    assert [each.rank for each in written.ranks] == [1]
    assert [(note.severity, note.rank) for note in written.diagnostics] == [("error", 0)]
    assert str(given.databases[0]) == written.diagnostics[0].source
    assert not [path for path in (tmp_path / "out").rglob("*") if "unfinished" in path.name]


def test_refuses_copies_without_enough_space(profiles, tmp_path, monkeypatch):
    given = profiles()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(OutputError, match="not enough space for copies"):
        given.copies(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_the_database_unchanged(profiles, monkeypatch):
    given = profiles()
    given.in_place()
    before = ask(given.databases[0], ROWS), ask(given.databases[0], IDS)
    monkeypatch.setattr(ascend_databases, "COLUMN", "no such column, nor a name for one")
    written = given.in_place(step=0)
    assert written.ranks == ()
    assert (ask(given.databases[0], ROWS), ask(given.databases[0], IDS)) == before


def test_a_killed_writer_leaves_the_database_unchanged(profiles):
    given = profiles()
    given.in_place()
    path = given.databases[0]
    before = ask(path, ROWS), ask(path, IDS)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    assert Path(f"{path}-journal").exists()
    assert (ask(path, ROWS), ask(path, IDS)) == before
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_statement_without_an_end_is_interrupted(monkeypatch):
    monkeypatch.setattr("stagescope.exporters.other_tools.ascend_databases.limit", lambda _: 0.01)
    with closing(sqlite3.connect(":memory:")) as connection:
        ascend_databases._limit_time(connection)
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            connection.execute(endless)
