"""`stagescope hang` on real trainings of torch that stop, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from children import clean_environment, recording_command
from stagescope.cli import main
from stagescope.cli.hang import EXIT_HUNG

TRAINING = Path(__file__).parents[1] / "hanging_training.py"
LIMIT_S = 120
EXPECTED = {
    "sleep": ([2], "Rank 2 holds up the training: it has been in forward of micro-batch 1, stage 2"),
    "receive": ([0, 3], "Ranks 0 and 3 wait for each other: rank 0 for rank 3 (all_reduce, number 5 in "),
    "sends": ([1, 2], "Ranks 1-2 wait for each other: rank 1 for rank 2 (send to rank 2)"),
    "mismatch": ([0, 1, 2, 3], "number 5: ranks 0-2 all_reduce, rank 3 all_gather."),
    "replicas": ([2], "Rank 2 holds up the training: it has recorded nothing for"),
    "stop": ([1], "Rank 1 holds up the training: it exists, but has written nothing for"),
}


@contextmanager
def training(how, directory):
    """Run a training that stops, and end it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*recording_command(directory), *torchrun, str(TRAINING), how]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=clean_environment(), start_new_session=True, **silent) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            for pid in worker_ids(directory):  # torchrun starts its workers in sessions of their own
                kill(pid)


def worker_ids(directory):
    return (
        [state["pid"] for state in json_report(directory)["ranks"]] if any(directory.glob("*.sscope")) else []
    )


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def json_report(directory, *options):
    out = directory.parent / "hang.json"
    main(["hang", str(directory), "--json", str(out), "--force", *options])
    return json.loads(out.read_text())


def report_of_hang(directory, culprits, sentence):
    """Return the report as soon as it states this of these ranks, the last one if that takes too long.

    A stopped process is first one that has recorded nothing, and a second later one that writes nothing.
    """
    until_s = time.monotonic() + LIMIT_S
    while True:
        if any(directory.glob("*.sscope")):
            report = json_report(directory, "--after", "3")
            expected = report["culprits"] == culprits and sentence in " ".join(report["sentences"])
            if expected or time.monotonic() > until_s:
                return report
        time.sleep(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", EXPECTED)
def test_the_rank_that_holds_up_a_training_is_named(how, tmp_path, capsys):
    pytest.importorskip("torch")
    culprits, sentence = EXPECTED[how]
    recordings = tmp_path / "recordings"
    with training(how, recordings):
        report = report_of_hang(recordings, culprits, sentence)
        assert report["culprits"] == culprits
        assert sentence in " ".join(report["sentences"])
        capsys.readouterr()
        assert main(["hang", str(recordings), "--after", "3"]) == EXIT_HUNG
        out = capsys.readouterr().out
        assert main(["hang", str(recordings), "--after", "3", "--stacks"]) == EXIT_HUNG
        stacks = capsys.readouterr().out
    assert sentence in out
    for state in report["ranks"]:
        is_asked = f"rank {state['rank']}, training thread, innermost call first:" in stacks
        assert is_asked or (how == "stop" and state["rank"] == 1)
    if how == "replicas":
        assert [state["chain"] for state in report["ranks"]] == [[1, 3, 2], [3, 2], [], [2]]
    if how == "sleep":
        assert [state["chain"] for state in report["ranks"]] == [[1, 2], [2], [], [2]]
        assert "hanging_training.py:" in report["sentences"][0]


def test_a_directory_without_recordings_is_an_error(tmp_path, capsys):
    assert main(["hang", str(tmp_path)]) == 1
    assert f"no recording of stagescope in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["hang"], ["watch", "--seconds", "0"]])
def test_a_pipe_is_refused_instead_of_waited_for(words, tmp_path, capsys):
    pipe = tmp_path / "rank-00000.sscope"
    os.mkfifo(pipe)
    assert main([*words, str(pipe)]) == 1
    assert "is a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["watch", "--seconds", "nan"], ["hang", "--after", "inf"]])
def test_times_that_no_clock_reaches_are_refused(words, tmp_path, capsys):
    assert main([*words, str(tmp_path)]) == 2
    assert "is not a finite number" in capsys.readouterr().err
