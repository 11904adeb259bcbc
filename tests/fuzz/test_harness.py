"""The harness notices every kind of failure, and the same seed and number make the same mutation."""

from pathlib import Path
from random import Random

import pytest

from fuzz import worker
from fuzz.campaign import Plan, Summary, run
from fuzz.formats import BY_NAME
from fuzz.oracle import judge, read_intact
from fuzz.worker import Result, Worker


@pytest.fixture
def case(tmp_path):
    folder = tmp_path / "case"
    folder.mkdir()
    BY_NAME["csv"].write(folder)
    return folder


def outcome(case, *, is_revealed, change):
    intact = read_intact(case)
    table = case / "spans.csv"
    table.write_text(change(table.read_text()))
    return judge([case], intact, is_revealed=is_revealed, thorough=False).kind


def test_a_different_result_is_a_failure_only_where_the_damage_reveals_itself(case):
    def change(text):
        return text.replace("forward,", "backward,", 1)

    assert outcome(case, is_revealed=False, change=change) == "changed"
    BY_NAME["csv"].write(case)
    assert outcome(case, is_revealed=True, change=change) == "silent"


def test_errors_and_equal_results_are_accepted(case):
    assert outcome(case, is_revealed=True, change=lambda text: text) == "same"
    assert outcome(case, is_revealed=True, change=lambda text: text.replace("rank", "x", 1)) == "refused"


def test_an_exception_that_is_no_error_of_ours_is_a_failure(case, monkeypatch):
    monkeypatch.setattr("stagescope.api.read", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        read_intact(case)
    found = judge([case], None, is_revealed=True, thorough=False)
    assert found.kind == "traceback"
    assert found.is_failure


def test_a_worker_that_dies_or_hangs_is_replaced_and_its_case_is_kept(tmp_path, monkeypatch):
    one = Worker(tmp_path)
    assert not one.run("csv", 1, 0, thorough=False).is_failure
    one._process.kill()
    assert one.run("csv", 1, 1, thorough=False).kind == "killed"
    monkeypatch.setattr(worker, "HANG_SECONDS", -1)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0)
    assert one.run("csv", 1, 2, thorough=False).kind == "hang"
    one.close()
    assert {"csv-1-1", "csv-1-2"} == {folder.name for folder in tmp_path.iterdir()}
    assert "SEED=1 ONLY=2" in (tmp_path / "csv-1-2" / "failure.txt").read_text()


@pytest.mark.parametrize("name", ["recording frames", "chrome", "csv", "parquet", "nsight", "paddle fleet"])
def test_every_mutator_of_a_format_is_repeatable(name, tmp_path):
    form = BY_NAME[name]
    form.write(tmp_path)
    target = max(file for file in tmp_path.rglob(form.pattern) if file.is_file())
    intact = target.read_bytes()
    for mutator in dict.fromkeys(form.mutators):
        found = []
        for _ in range(2):
            target.write_bytes(intact)
            mutator.apply(target, Random(5))  # noqa: S311 - repeatable, not a secret
            found.append(target.read_bytes())
            for beside in target.parent.glob(f"{target.name}-*"):
                beside.unlink()
        assert found[0] == found[1], mutator.name


def test_the_table_counts_every_outcome():
    summary = Summary()
    for number, kind in enumerate(("same", "refused", "hang", "silent")):
        summary.results["csv"].append(Result(number, kind, "", (), kind in ("hang", "silent")))
    assert summary.table().splitlines()[-1] == "| all | 4 | 1 | 0 | 1 | 0 | 2 |"
    assert (
        run(Plan(["csv"], 1, count=0), Path()).table().splitlines()[-1] == "| all | 0 | 0 | 0 | 0 | 0 | 0 |"
    )
