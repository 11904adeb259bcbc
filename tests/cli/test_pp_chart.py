"""stagescope pp-chart."""

from __future__ import annotations

import itertools
import os
import sqlite3
from contextlib import closing

import pytest

from ascend_profiles import Cluster, add_mark, edit, lose_mark, write_cluster
from stagescope.cli import main

ROWS = "SELECT name, startNs, endNs, type FROM StepTaskInfo ORDER BY startNs"
DUALPIPEV = {"schedule": "dualpipev", "pp": 2, "microbatches": 4, "options": {"split_cooldown": False}}


@pytest.fixture
def cluster(tmp_path):
    """Return a function that writes a cluster below `profiles` and returns its databases by rank."""
    return lambda **words: write_cluster(tmp_path / "profiles", Cluster(**words)).databases


@pytest.fixture
def call(tmp_path, capsys):
    """Return a function that runs the command on `profiles` and returns exit code, output and errors."""

    def run(*words):
        code = main(["pp-chart", "-d", str(tmp_path / "profiles"), *words])
        diagnosed = capsys.readouterr()
        return code, diagnosed.out, diagnosed.err

    return run


def ask(path, query=ROWS):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def names(path):
    return [name for name, *_ in ask(path)]


def copy_of(path, tmp_path, place="profiles_pp_chart"):
    return tmp_path / place / path.relative_to(tmp_path / "profiles")


def test_writes_copies_next_to_the_profiles_and_reports_each_rank(cluster, call, tmp_path):
    databases = cluster(pp=2, microbatches=2, steps=1)
    code, out, err = call()
    assert (code, err) == (0, "")
    for rank, path in databases.items():
        assert names(copy_of(path, tmp_path)).count("FP") == 2
        assert f"rank {rank}: 4 actions, 4 paired operations: {copy_of(path, tmp_path)}" in out
        assert ask(path, "SELECT name FROM sqlite_master WHERE name = 'StepTaskInfo'") == []
    assert f"wrote 2 ranks to {tmp_path / 'profiles_pp_chart'}" in out


def test_an_existing_output_needs_force(cluster, call, tmp_path):
    databases = cluster(pp=2, microbatches=2, steps=1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    code, _, err = call("-o", str(tmp_path / "out"))
    assert (code, "out already exists" in err) == (1, True)
    assert call("-o", str(tmp_path / "out"), "--force")[0] == 0
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
    assert len(names(copy_of(databases[0], tmp_path, "out"))) == 4


@pytest.mark.parametrize("place", ["profiles", "profiles/charts"])
def test_copies_among_the_profiles_are_refused(cluster, call, tmp_path, place):
    cluster(pp=2, microbatches=2, steps=1)
    code, _, err = call("-o", str(tmp_path / place), "--force")
    assert (code, "would be read as profiles of the same ranks" in err) == (1, True)


def test_in_place_changes_the_profiles_themselves(cluster, call, tmp_path):
    databases = cluster(**DUALPIPEV)
    code, out, _ = call("--in-place")
    assert code == 0
    assert str(databases[0]) in out
    assert "3F+5B" in names(databases[0])
    assert not (tmp_path / "profiles_pp_chart").exists()


def test_in_place_and_output_are_mutually_exclusive(cluster, call):
    cluster(pp=2, microbatches=2, steps=1)
    assert call("--in-place", "-o", "out")[0] == 2


def test_a_read_only_profile_is_refused_and_none_is_changed(cluster, call):
    databases = cluster(pp=2, microbatches=2, steps=1)
    databases[1].chmod(0o444)
    code, _, err = call("--in-place")
    assert (code, str(databases[1]) in err) == (1, True)
    assert ask(databases[0], "SELECT name FROM sqlite_master WHERE name = 'StepTaskInfo'") == []


def test_writes_only_the_selected_step_and_ranks(cluster, call, tmp_path):
    databases = cluster(pp=4, microbatches=4, steps=3)
    assert call("--step", "1", "--rank", "0,2-3")[0] == 0
    assert len(names(copy_of(databases[2], tmp_path))) == 8
    assert not copy_of(databases[1], tmp_path).exists()


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (["--step", "7"], (1, "step 7 was not recorded; recorded: 0-1")),
        (["--rank", "1,9"], (1, "rank 9 was not recorded; recorded: 0-1")),
        (["--rank", "first"], (2, "'first': expected numbers and ranges")),
    ],
)
def test_missing_steps_and_ranks_are_reported(cluster, call, tmp_path, words, failure):
    cluster(pp=2, microbatches=2)
    code, diagnosed = failure
    found = call(*words)
    assert (found[0], diagnosed in found[2]) == (code, True)
    assert not (tmp_path / "profiles_pp_chart").exists()


def test_numbers_are_written_on_request(cluster, call, tmp_path):
    databases = cluster(pp=2, microbatches=2, steps=1)
    assert call("--names", "numbered")[0] == 0
    assert names(copy_of(databases[1], tmp_path)) == ["F0", "B0", "F1", "B1"]


def test_schedule_and_micro_batches_can_be_given_as_options(cluster, call, tmp_path):
    databases = cluster(**DUALPIPEV, declared=False)
    assert call("--pp-type", "dualpipev", "--microbatches", "4", "--pp", "2")[0] == 0
    assert "3F+5B" in names(copy_of(databases[0], tmp_path))


def test_a_missing_mark_keeps_the_other_names_and_sets_the_exit_code(cluster, call, tmp_path):
    databases = cluster(**DUALPIPEV)
    assert call("-o", str(tmp_path / "whole"))[0] == 0
    whole = names(copy_of(databases[0], tmp_path, "whole"))
    lose_mark(databases[0], 3)
    code, out, err = call()
    assert code == 1
    assert names(copy_of(databases[0], tmp_path)) == whole[:3] + whole[4:]
    assert "marks of actions that dualpipev has are missing" in out
    assert "partial data" in err


def test_an_empty_pop_keeps_its_name_and_shifts_no_other(cluster, call, tmp_path):
    databases = cluster(**DUALPIPEV, steps=1)
    assert call("-o", str(tmp_path / "whole"))[0] == 0
    whole = ask(copy_of(databases[0], tmp_path, "whole"))
    at = next(end for (_, _, end, _), (_, start, _, _) in itertools.pairwise(whole) if start > end + 10)
    add_mark(databases[0], "{'name': 'WeightGradStore.pop'}", at, at + 10)
    code, out, _ = call()
    rows = ask(copy_of(databases[0], tmp_path))
    assert [row for row in rows if row[1:3] != (at, at + 10)] == whole
    assert [row for row in rows if row[1:3] == (at, at + 10)] == [("WeightGradStore.pop", at, at + 10, 10)]
    assert (code, "does not have, such as an empty WeightGradStore.pop" in out) == (0, True)


def test_an_unreadable_rank_is_reported_and_the_others_are_written(cluster, call, tmp_path):
    databases = cluster(**DUALPIPEV)
    databases[0].write_bytes(b"")
    code, out, _ = call()
    assert code == 1
    assert "wrote 1 ranks" in out
    assert str(databases[0]) in out
    assert "6F+0B" in names(copy_of(databases[1], tmp_path))


def test_a_folder_without_profiles_is_an_error(call, tmp_path):
    (tmp_path / "profiles").mkdir()
    assert call()[0] == 1


def test_profiles_without_marks_are_an_error_and_nothing_is_written(cluster, call, tmp_path):
    for path in cluster(pp=2, microbatches=2).values():
        edit(path, "DELETE FROM MSTX_EVENTS")
    assert call()[0] == 1
    assert not (tmp_path / "profiles_pp_chart").exists()


def test_the_chart_has_the_profilers_raw_timestamps(cluster, call, tmp_path):
    databases = cluster(microbatches=2, steps=2, ranks_per_host=2, skew_ns=20_000_000)
    assert call()[0] == 0
    for path in databases.values():
        marks = {at for (at,) in ask(path, "SELECT startNs FROM MSTX_EVENTS")}
        tasks = {at for (at,) in ask(path, "SELECT startNs FROM TASK")}
        charted = {at for _, at, *_ in ask(copy_of(path, tmp_path))}
        assert charted
        assert charted <= marks | tasks


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
HOSTILE = {
    "a trigger": f"CREATE TRIGGER t AFTER UPDATE ON COMMUNICATION_OP BEGIN {ENDLESS}; END",
    "a trigger on names": f"CREATE TRIGGER t AFTER INSERT ON STRING_IDS BEGIN {ENDLESS}; END",
    "a view in the place of the chart": f"CREATE VIEW StepTaskInfo AS {ENDLESS}",
}


@pytest.mark.parametrize("place", [(), ("--in-place",)])
@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE)
def test_code_in_a_database_is_not_run(cluster, call, statement, place):
    databases = cluster(pp=2, microbatches=2, steps=1)
    edit(databases[1], statement)
    code, out, err = call(*place)
    assert code == 1
    assert "rank 0: 4 actions" in out
    assert "nothing was written for this rank: it has a " in " ".join((out + err).split())
    assert len(ask(databases[1], "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')")) == 1


def test_a_link_is_not_followed_in_place_and_a_pipe_is_not_copied(cluster, call, tmp_path):
    databases = cluster(pp=2, microbatches=2, steps=1)
    os.mkfifo(databases[0].parents[1] / "profiler_info_9.json")
    assert call()[0] == 0
    original = tmp_path / "original.db"
    databases[1].rename(original)
    databases[1].symlink_to(original)
    code, _, err = call("--in-place")
    assert (code, "is a symbolic link; nothing was changed" in err) == (1, True)
    assert ask(original, "SELECT name FROM sqlite_master WHERE name = 'StepTaskInfo'") == []
