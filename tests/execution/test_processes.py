"""Worker processes: results in order, errors as raised, and a killed worker costs one item a second try."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress

import pytest

from execution_work import (
    interrupted,
    killed,
    killed_once,
    limit_of_ranks,
    options_of_allocator,
    process,
    processors,
    refused,
    squared,
)
from stagescope.execution import InThisProcess, executor_for, for_large_items, processes
from stagescope.execution.choice import checked_address
from stagescope.execution.executor import Task, result_of
from stagescope.vocabulary.errors import CommandError, InputError, UsageError
from stagescope.vocabulary.limits import checked_limits, limits_in_force


def test_items_are_done_in_processes_that_end(tmp_path):
    notices: list[str] = []
    marker = str(tmp_path / "marker")
    with limits_in_force(checked_limits({"ranks": 77})), executor_for(2, on_notice=notices.append) as workers:
        assert list(workers.map(squared, range(20))) == [number**2 for number in range(20)]
        assert list(workers.map(limit_of_ranks, [0])) == [77]
        with pytest.raises(InputError, match="it is odd"):
            list(workers.map(refused, ["a.sscope"]))
        assert len(list(workers.map(killed_once, ["", marker, ""]))) == 3
        assert notices == [f"a worker process was killed while it worked on {marker}, which runs again"]
        with pytest.raises(CommandError, match="2 workers were killed while they worked on step 7"):
            list(workers.map(killed, ["step 7"]))
    assert multiprocessing.active_children() == []


def test_only_the_item_that_a_killed_worker_worked_on_counts_as_tried(tmp_path):
    notices: list[str] = []
    markers = [str(tmp_path / f"marker-{number}") for number in range(4)]
    items = [each for marker in markers for each in (marker, "", "")]
    with executor_for(2, on_notice=notices.append) as workers:
        assert len(list(workers.map(killed_once, items))) == len(items)
        assert sorted(notices) == [
            f"a worker process was killed while it worked on {each}, which runs again" for each in markers
        ]


def test_the_last_items_are_left_to_the_first_idle_workers():
    taken = []

    def items():
        for number in range(40):
            taken.append(number)
            yield number

    with executor_for(2) as workers:
        results = workers.map(squared, items())
        assert next(results) == 0
        assert len(taken) <= 16  # those at workers, done ahead and looked at
        assert list(results) == [number**2 for number in range(1, 40)]


@pytest.mark.skipif(sys.platform != "linux", reason="workers stay on processors on Linux alone")
def test_workers_stay_on_their_processors_and_this_process_does_not():
    every = sorted(os.sched_getaffinity(0))
    if len(every) == 1:
        pytest.skip("there is one processor")
    with executor_for(len(every)) as workers:
        found = {tuple(each) for each in workers.map(processors, range(4 * len(every)))}
        assert found <= {(each,) for each in every}
        assert sorted(os.sched_getaffinity(0)) == every


def test_work_beside_that_of_this_process_leaves_a_processor_to_it(monkeypatch):
    monkeypatch.setattr(processes, "core_count", lambda: 3)
    with executor_for(3) as workers:
        assert list(workers.map(squared, range(8), beside=True)) == [number**2 for number in range(8)]
        assert len(multiprocessing.active_children()) == 2
        assert list(workers.map(squared, range(8))) == [number**2 for number in range(8)]
        assert len(multiprocessing.active_children()) == 3
    with executor_for(2) as workers:
        assert list(workers.map(squared, range(8), beside=True)) == [number**2 for number in range(8)]
        assert len(multiprocessing.active_children()) == 2


def test_workers_start_early_where_they_will_be_needed():
    with executor_for(3) as workers:
        workers.prepare(squared, 2)
        assert len(multiprocessing.active_children()) == 2
        workers.prepare(squared, 2)
        assert len(multiprocessing.active_children()) == 2
        assert list(workers.map(squared, range(8))) == [number**2 for number in range(8)]
        assert len(multiprocessing.active_children()) == 3
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_before_it_has_work_is_replaced():
    with executor_for(2) as workers:
        workers.prepare(squared, 2)
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        assert list(workers.map(squared, range(8))) == [number**2 for number in range(8)]


def test_workers_have_their_own_options_of_the_allocator_although_polars_has_set_those_of_this_process():
    with executor_for(2) as workers:
        [options] = workers.map(options_of_allocator, [0])
    last = dict(option.split(":") for option in options)
    assert (last["dirty_decay_ms"], last["thp"]) == ("10000", "always")


def test_nothing_starts_early_without_workers():
    with executor_for(1) as alone:
        alone.prepare(squared, 2)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("is_large", [False, True])
def test_one_worker_is_another_process_only_for_large_calls(is_large):
    with executor_for(1, is_large=is_large) as alone:
        [found] = alone.map(process, [None])
        assert (found != os.getpid()) == is_large


class Interrupts(threading.Thread):
    """Send Ctrl-C to all workers again and again, from their first moment."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.002):
            for worker in multiprocessing.active_children():
                with suppress(ProcessLookupError):  # it has ended since then
                    os.kill(worker.pid, signal.SIGINT)
                    self.count += 1


def interrupt(results) -> None:
    next(results)
    raise KeyboardInterrupt


def test_workers_end_when_the_caller_is_interrupted():
    with pytest.raises(KeyboardInterrupt), executor_for(2) as workers:
        interrupt(workers.map(squared, range(8)))
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="a signal to one process is not Ctrl-C there")
def test_workers_leave_ctrl_c_to_the_caller_while_they_run_a_query(capfd):
    notices: list[str] = []
    with executor_for(2, on_notice=notices.append) as workers:
        assert list(workers.map(interrupted, range(4))) == [0, 1, 2, 3]
    assert notices == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="a signal to one process is not Ctrl-C there")
def test_workers_leave_ctrl_c_to_the_caller_while_they_start(capfd):
    notices: list[str] = []
    interrupts = Interrupts()
    interrupts.start()
    with executor_for(2, on_notice=notices.append) as workers:
        assert list(workers.map(squared, range(8))) == [number**2 for number in range(8)]
    interrupts.ended.set()
    interrupts.join()
    assert interrupts.count > 2
    assert notices == []
    assert "Traceback" not in capfd.readouterr().err


def test_one_worker_is_this_process():
    with executor_for(1) as workers:
        assert isinstance(workers, InThisProcess)
        assert list(workers.map(squared, [3])) == [9]


def test_what_a_task_of_a_cluster_raises_is_an_outcome_that_the_caller_gets():
    assert result_of(Task(squared, {})(3)) == 9
    outcome = Task(refused, {})("a.sscope")  # not raised: Dask would log a traceback
    with pytest.raises(InputError, match="it is odd"):
        result_of(outcome)


class Cluster(InThisProcess):
    """In place of a cluster, through whose scheduler nothing large may pass."""

    takes_large = False


def test_large_items_of_a_cluster_have_a_process_of_their_own_that_ends():
    with for_large_items(Cluster()) as executor:
        [of_others] = executor.map(process, [0])
    assert of_others != os.getpid()
    assert multiprocessing.active_children() == []


def test_large_items_stay_with_the_processes_of_this_machine():
    for count in (1, 2):
        with executor_for(count) as workers, for_large_items(workers) as executor:
            assert executor is workers


@pytest.mark.parametrize(
    "address",
    [
        "local:4",
        "slurm",
        "ray",
        "tcp://127.0.0.1:8786",
        "tcp://localhost:1",
        "tls://n1:8786",
        "ray://[::1]:1",
    ],
)
def test_addresses_on_this_machine_and_authenticated_ones_are_accepted(address):
    assert checked_address(address) == address


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:8786", "ray://head:10001"])
def test_an_unauthenticated_address_of_another_machine_has_to_be_trusted(address):
    with pytest.raises(UsageError, match="whatever anyone in its network sends") as error:
        checked_address(address)
    assert f"--cluster trusted+{address}" in error.value.hint
    assert checked_address(f"trusted+{address}") == address


@pytest.mark.parametrize("address", ["", "local:0", "tcp://node", "http://node:80", "kubernetes"])
def test_other_addresses_are_refused(address):
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT"):
        checked_address(address)
