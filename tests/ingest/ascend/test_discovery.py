"""Ranks of profiles, and the selection among several of one rank."""

import sqlite3
from contextlib import closing

import pytest

from stagescope.ingest.ascend.discovery import Profile, choose_profiles, is_profile


def database(path, *statements):
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for statement in ("CREATE TABLE STRING_IDS (id INTEGER, value TEXT)", *statements):
            connection.execute(statement)
        connection.commit()
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("ascend_pytorch_profiler_0.db", 0),
        ("ascend_pytorch_profiler_127.db", 127),
        ("ascend_mindspore_profiler_3.db", 3),
        ("msmonitor_4711_20251120101112123_12.db", 12),
    ],
)
def test_reads_the_rank_from_the_file_name(tmp_path, name, rank):
    path = tmp_path / name
    path.write_bytes(b"")
    assert is_profile(path, b"")
    assert choose_profiles([path]) == ([Profile(rank, path)], [])


@pytest.mark.parametrize("name", ["analysis.db", "ascend_pytorch_profiler_x.db", "msmonitor_1_2_3.db"])
def test_files_of_other_names_are_recognized_by_their_tables(tmp_path, name):
    other = database(tmp_path / name)
    assert not is_profile(other, other.read_bytes()[:4096])
    marked = database(tmp_path / "renamed.db", "CREATE TABLE MSTX_EVENTS (a)", "CREATE TABLE TASK (a)")
    assert is_profile(marked, marked.read_bytes()[:4096])


def test_reads_the_rank_from_the_database_if_the_name_has_none(tmp_path):
    path = database(
        tmp_path / "ascend_pytorch_profiler.db",
        "CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER)",
        "INSERT INTO RANK_DEVICE_MAP VALUES (5, 1)",
    )
    profiles, (note,) = choose_profiles([path])
    assert profiles == [Profile(5, path)]
    assert (note.severity, note.message) == (
        "info",
        "the file name has no rank; rank 5 is taken from RANK_DEVICE_MAP",
    )


def test_reads_the_rank_from_the_declared_arguments(tmp_path):
    path = database(
        tmp_path / "ascend_pytorch_profiler.db",
        "CREATE TABLE META_DATA (name TEXT, value TEXT)",
        """INSERT INTO META_DATA VALUES ('distributed_args', '{"rank": 6}')""",
    )
    assert choose_profiles([path])[0] == [Profile(6, path)]


def test_reads_the_rank_from_a_file_next_to_the_output(tmp_path):
    path = database(tmp_path / "w_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler.db")
    (tmp_path / "w_1_ascend_pt" / "profiler_info_7.json").write_text("{}")
    profiles, (note,) = choose_profiles([path])
    assert profiles == [Profile(7, path)]
    assert (note.code, note.rank) == ("rank.from_content", 7)


def test_a_single_profile_without_a_rank_is_rank_0(tmp_path):
    one = database(tmp_path / "a" / "ascend_pytorch_profiler.db")
    other = database(tmp_path / "b" / "ascend_pytorch_profiler.db")
    profiles, (note,) = choose_profiles([one])
    assert profiles == [Profile(0, one)]
    assert note.severity == "info"
    profiles, notes = choose_profiles([one, other])
    assert profiles == []
    assert {note.code for note in notes} == {"rank.unknown"}
    assert {note.severity for note in notes} == {"error"}


def test_the_newest_folder_is_used(tmp_path):
    paths = [
        database(
            tmp_path / f"n_1_{time}_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db"
        )
        for time in ("20251120101112123", "20260120101112123", "20251220101112123")
    ]
    profiles, notes = choose_profiles(paths)
    assert profiles == [Profile(0, paths[1])]
    assert [note.source for note in notes] == [str(paths[0]), str(paths[2])]
    assert {(note.severity, note.rank) for note in notes} == {("warning", 0)}


def test_the_session_start_decides_without_a_time_in_the_path(tmp_path):
    paths = [
        database(
            tmp_path / folder / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db",
            "CREATE TABLE SESSION_TIME_INFO (startTimeNs INTEGER, endTimeNs INTEGER)",
            f"INSERT INTO SESSION_TIME_INFO VALUES ({start}, {start})",  # noqa: S608 - planted
        )
        for folder, start in (("a", 10), ("b", 30), ("c", 20))
    ]
    assert choose_profiles(paths)[0] == [Profile(0, paths[1])]


def test_ranks_are_sorted(tmp_path):
    paths = [database(tmp_path / f"ascend_pytorch_profiler_{rank}.db") for rank in (10, 2, 1)]
    assert [profile.rank for profile in choose_profiles(paths)[0]] == [1, 2, 10]
