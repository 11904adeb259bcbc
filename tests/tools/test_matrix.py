"""The matrix of CPU trainings: its file, and what the comparison of two runs of a training finds."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import polars as pl
import pytest
from tools.compatibility import environments, matrix
from tools.compatibility.catalog import SOURCES
from tools.compatibility.cells import read_rows
from tools.compatibility.cells import rows_of as rows_of_coverage
from tools.compatibility.comparison import (
    Outcome,
    Plan,
    differing_outcomes,
    last_error,
    read_plans,
    wrong_actions,
    wrong_messages,
)
from tools.compatibility.environments import (
    TRAININGS,
    Environment,
    InstallationError,
    find_python,
    read_environments,
    rows_of,
)

from drawing import timeline_from_text
from stagescope.model import SPANS
from stagescope.model.validate import conform

PLAN = """
PLAN rank=0 stages=0 microbatches=2 steps=1 backward=full
PLAN rank=1 stages=1 microbatches=2 steps=1 backward=full
"""
PLANS = read_plans(PLAN)
VALUES = "VALUE rank=0 step=0 loss=- parameters=aa\nVALUE rank=1 step=0 loss=0x1.8p+0 parameters=bb\n"
PLAIN = Outcome(0, f"VERSIONS torch 9.9\n{PLAN}{VALUES}")
ACTIONS = """
F0 F1 .  .  B0 B1
.  F0 B0 F1 B1 .
"""
SPLIT = ("F0 F1 . I0 W0 I1 W1", (Plan(0, (0,), 2, 1, "split"),))


def actions(text=ACTIONS):
    return timeline_from_text(text).spans


def messages(*, early=None):
    """Return the transfers of ACTIONS; the message of one key is received before it is sent."""
    rows = []
    for microbatch in range(2):
        for direction, here in (("forward", 0), ("backward", 1)):
            start_ns = 1_000 * microbatch + 500
            received_ns = 100 if (direction, microbatch) == early else start_ns + 200
            place = {"step": 0, "lane": "comm", "chunk": 0, "microbatch": microbatch}
            sender = {"rank": here, "stage": here, "peer": 1 - here, "kind": f"send_{direction}"}
            receiver = {"rank": 1 - here, "stage": 1 - here, "peer": here, "kind": f"recv_{direction}"}
            rows += [
                place | sender | {"start_ns": start_ns, "end_ns": start_ns + 100},
                place | receiver | {"start_ns": 0, "end_ns": received_ns},
            ]
    return conform(pl.DataFrame(rows), SPANS)


@pytest.mark.parametrize("row", rows_of(read_environments()), ids=lambda row: row.name)
def test_every_row_has_a_script_and_a_framework_of_the_catalog(row):
    environment = row.environment
    assert (TRAININGS / environment.script).is_file()
    assert environment.framework in {source.name for source in SOURCES}
    version = environment.name.rpartition("-")[2]
    assert f"{environment.framework}=={version}" in (*environment.packages, *environment.alone)


def test_every_release_that_the_table_of_coverage_calls_trained_is_in_the_matrix():
    """Rows with a condition (`when`) have trainings of their own, among the tests."""
    names = {environment.name for environment in read_environments()}
    missing = {
        f"{source.name}-{version}"
        for source in SOURCES
        if source.oldest  # on a package index
        for row in rows_of_coverage(source, read_rows())
        if row["evidence"] == "training" and "when" not in row
        for version in row["ran"]
    } - names
    assert missing == set()


def test_names_of_rows_and_folders_are_unique():
    names = [row.name.replace("/", "-") for row in rows_of(read_environments())]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("script", sorted(TRAININGS.glob("*.py")), ids=lambda path: path.name)
def test_trainings_do_not_know_the_recorder(script):
    assert "stagescope" not in script.read_text()


def test_equal_runs_and_a_complete_recording_have_no_faults():
    assert differing_outcomes(PLAIN, PLAIN) == []
    assert wrong_actions(actions(), PLANS) == []
    assert wrong_messages(messages(), PLANS) == []


@pytest.mark.parametrize(
    ("recorded", "fault"),
    [
        (Outcome(0, VALUES.replace("1.8p", "1.9p")), "1 of 2 values differ or are missing under recording"),
        (Outcome(0, VALUES.replace("=bb", "=bc")), "1 of 2 values differ or are missing under recording"),
        (Outcome(0, VALUES.splitlines()[0]), "1 of 2 values differ or are missing under recording"),
        (Outcome(0, VALUES * 2), "0 of 2 values differ or are missing under recording"),
        (
            Outcome(1, VALUES, "Traceback\n[rank 0] TypeError: no len()\nended with 1\n"),
            "the recorded run ended with 1: [rank 0] TypeError: no len()",
        ),
        (Outcome(None, VALUES), "the recorded run did not end in time"),
    ],
    ids=["loss", "parameters", "missing", "doubled", "exit code", "hang"],
)
def test_finds_what_differs_under_recording(recorded, fault):
    assert differing_outcomes(PLAIN, recorded) == [fault]


def test_a_training_that_fails_by_itself_proves_nothing():
    failed = Outcome(1, PLAIN.output, "ValueError: no device")
    assert differing_outcomes(failed, failed)[0] == "the plain run ended with 1: ValueError: no device"
    assert "the plain run printed 0 of 0 values" in differing_outcomes(Outcome(0, ""), Outcome(0, ""))
    assert last_error("\n") == "no message"


def test_finds_missing_doubled_and_unplanned_actions():
    (missing,) = wrong_actions(actions(ACTIONS.replace("F0 B0 F1 B1", "F0 B0 F1 . ")), PLANS)
    assert missing == "1 actions missing, such as B1.1 of rank 1 in step 0"
    (doubled,) = wrong_actions(pl.concat([actions(), actions().head(1)]), PLANS)
    assert doubled == "1 actions recorded more than once, such as F0.0 of rank 0 in step 0"
    (unplanned,) = wrong_actions(actions(ACTIONS + "F2.0\n"), PLANS)
    assert unplanned == "1 actions not planned, such as F2.0 of rank 2 in step 0"
    later = actions().with_columns(pl.lit(1, pl.Int32).alias("step"))
    assert len(wrong_actions(later, PLANS)) == 2


def test_an_action_without_its_microbatch_is_missing():
    unknown = actions().with_columns(pl.lit(None, pl.Int32).alias("microbatch"))
    missing, unplanned, doubled = wrong_actions(unknown, PLANS)
    assert missing.startswith("8 actions missing")
    assert unplanned.startswith("4 actions not planned")
    assert doubled.startswith("4 actions recorded more than once")


def test_a_split_backward_pass_has_both_halves():
    text, plans = SPLIT
    assert wrong_actions(actions(text), plans) == []
    (fault,) = wrong_actions(actions(text.replace("W1", ".")), plans)
    assert fault == "1 actions missing, such as W0.1 of rank 0 in step 0"
    full = wrong_actions(actions("F0 F1 B0 B1"), plans)
    assert [fault.partition(",")[0] for fault in full] == ["4 actions missing", "2 actions not planned"]


def test_where_backward_passes_may_be_split_each_is_whole_or_has_both_halves():
    plans = (Plan(0, (0,), 2, 1, "mixed"),)
    assert wrong_actions(actions("F0 F1 B0 I1 W1"), plans) == []
    (fault,) = wrong_actions(actions("F0 F1 B0 I1"), plans)
    assert fault == "1 actions missing, such as W0.1 of rank 0 in step 0"


def test_finds_messages_that_are_missing_doubled_early_or_have_one_end():
    (early,) = wrong_messages(messages(early=("backward", 1)), PLANS)
    assert early == "1 of 4 receives end before the send begins"
    first = messages().filter(
        pl.col("microbatch") == 0, pl.col("kind").is_in(["send_forward", "recv_forward"])
    )
    missing, one_end = wrong_messages(
        messages().join(first.head(1), on=["rank", "kind", "microbatch"], how="anti"), PLANS
    )
    assert (
        missing == "1 messages missing, such as forward of micro-batch 0 to stage 1, rank 0 to 1, in step 0"
    )
    assert one_end == "1 of 7 transfers have no counterpart"
    (doubled,) = wrong_messages(pl.concat([messages(), first]), PLANS)
    assert doubled.startswith("1 messages recorded more than once")


def test_a_message_of_a_rank_to_itself_may_be_recorded_or_not():
    plans = (Plan(0, (0, 3), 2, 1, "full"), Plan(1, (1, 2), 2, 1, "full"))
    faults = wrong_messages(messages(), plans)
    assert faults == [
        "4 messages missing, such as backward of micro-batch 0 to stage 2, rank 0 to 1, in step 0"
    ]


def test_ends_a_training_that_takes_too_long(tmp_path):
    outcome = matrix.execute([sys.executable, "-c", "input()"], tmp_path, "plain", 30)
    assert outcome.exit_code == 1
    assert "EOFError" in outcome.errors
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert matrix.execute(command, tmp_path, "plain", 0.5).exit_code is None


@pytest.mark.slow
def test_names_a_training_that_is_not_recorded(tmp_path, monkeypatch, capsys):
    (tmp_path / "training.py").write_text(f"print({PLAIN.output!r})\n")
    monkeypatch.setattr(matrix, "TRAININGS", tmp_path)
    row = Environment("torch-9.9", "torch", "training.py", (), (), (), {}, {"1F1B": ""})
    monkeypatch.setattr(matrix, "read_environments", lambda: [row])
    monkeypatch.setattr(matrix, "find_python", lambda *_: sys.executable)
    assert matrix.main(["--only", "torch-9.9", "--results", str(tmp_path / "results")]) == 1
    line = capsys.readouterr().out
    assert line.startswith(
        "torch-9.9/1F1B: torch 9.9: exit codes 0 and 0, values equal: yes, nothing recorded: "
    )
    assert "FAILED: the recording cannot be read: " in line
    assert (tmp_path / "results" / "torch-9.9-1F1B" / "plain.out").exists()


def test_refuses_an_unknown_name():
    with pytest.raises(SystemExit, match=r"unknown row or environment: torch-0\.1"):
        matrix.main(["--only", "torch-0.1"])


@pytest.fixture
def calls(monkeypatch):
    """Return the commands that would have made an environment; a package named "none" is not found."""
    found = []

    def run(command, *, env, **_):
        found.append((command, env.get("DS_BUILD_OPS")))
        if "venv" in command:
            (environments.Path(command[-1]) / "bin").mkdir(parents=True)
        failed = "none" in command
        return SimpleNamespace(returncode=int(failed), stderr="ERROR: No matching distribution\nhelp\n")

    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_makes_an_environment_once_and_again_when_its_packages_change(tmp_path, calls):
    environment = Environment(
        "deepspeed-1", "deepspeed", "deepspeed_engine.py", ("torch==2",), ("deepspeed==1",),
        ("--no-build-isolation",), {"DS_BUILD_OPS": "0"}, {},
    )  # fmt: skip
    for _ in range(2):
        python = find_python(environment, tmp_path, None, "python3.11")
    assert python == tmp_path / "deepspeed-1/bin/python"
    assert [command[0] for command, _ in calls] == ["python3.11", str(python), str(python)]
    assert [command[-1] for command, _ in calls] == [
        str(tmp_path / "deepspeed-1"),
        "torch==2",
        "deepspeed==1",
    ]
    assert calls[2][0][-3:-1] == ["--no-deps", "--no-build-isolation"]
    assert {variable for _, variable in calls} == {"0"}
    find_python(environment._replace(packages=("torch==3",)), tmp_path, None, "python3.11")
    assert len(calls) == 6


def test_reuses_an_environment_and_reports_one_that_cannot_be_made(tmp_path, calls, monkeypatch, capsys):
    environment = Environment("torch-1", "torch", "torch_pipelining.py", ("none",), (), (), {}, {"1F1B": ""})
    reused = tmp_path / "reused"
    (reused / "torch-1").mkdir(parents=True)
    assert find_python(environment, tmp_path, reused, "python3") == reused / "torch-1/bin/python"
    assert calls == []
    with pytest.raises(InstallationError, match="No matching distribution"):
        find_python(environment, tmp_path, None, "python3")
    monkeypatch.setattr(matrix, "read_environments", lambda: [environment])
    assert matrix.main(["--environments", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(
        "torch-1/1F1B: FAILED: torch-1 cannot be installed: ERROR: No match"
    )
