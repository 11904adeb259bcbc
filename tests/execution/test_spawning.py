"""What worker processes start with."""

import os
import sys

import pytest

from stagescope.execution import spawning
from stagescope.execution.spawning import (
    ALLOCATOR,
    HUGE_PAGES,
    LIBRARY,
    ONE_ARENA,
    THREADS,
    memory_returned_soon,
    own_processor,
    threads_shared,
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in (THREADS, ALLOCATOR, LIBRARY):
        monkeypatch.delenv(name, raising=False)


def test_workers_share_the_processors_and_keep_memory_for_each_of_their_threads(monkeypatch):
    monkeypatch.setattr(spawning, "core_count", lambda: 16)
    with threads_shared(4):
        assert os.environ[THREADS] == "4"
        assert "narenas:4" in os.environ[ALLOCATOR]
    assert THREADS not in os.environ
    assert ALLOCATOR not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="workers stay on processors on Linux alone")
def test_workers_have_a_processor_of_their_own_if_there_is_one_for_each(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {7, 3})
    assert [own_processor(number, 2) for number in range(2)] == [3, 7]
    assert own_processor(0, 1) is None
    assert own_processor(0, 4) is None


def test_workers_ask_for_huge_pages_and_their_threads_share_what_is_free():
    with threads_shared(2):
        assert "thp:always" in os.environ[ALLOCATOR]
        assert os.environ[LIBRARY].split(":") == [HUGE_PAGES, ONE_ARENA]
    assert LIBRARY not in os.environ


def test_what_polars_sets_for_this_process_is_not_taken_for_a_setting_of_the_user(monkeypatch):
    monkeypatch.setenv(ALLOCATOR, "dirty_decay_ms:500,muzzy_decay_ms:1000")
    with threads_shared(2):
        options = os.environ[ALLOCATOR].split(",")
    assert {"dirty_decay_ms:10000", "thp:always"} <= set(options)
    assert "dirty_decay_ms:500" not in options
    assert os.environ[ALLOCATOR] == "dirty_decay_ms:500,muzzy_decay_ms:1000"


@pytest.mark.parametrize("of_user", [None, "dirty_decay_ms:3000"])
def test_workers_return_memory_soon_where_tasks_are_large(of_user, monkeypatch):
    if of_user:
        monkeypatch.setenv(ALLOCATOR, of_user)
    with memory_returned_soon(), threads_shared(2):
        options = dict(option.split(":") for option in os.environ[ALLOCATOR].split(","))
    assert options["dirty_decay_ms"] == ("3000" if of_user else "1000")
    assert os.environ.get(ALLOCATOR) == of_user


def test_settings_of_the_user_are_kept(monkeypatch):
    settings = {
        THREADS: "3",
        ALLOCATOR: "dirty_decay_ms:500,narenas:2,thp:default",
        LIBRARY: "glibc.malloc.arena_max=1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with threads_shared(1):
        assert (os.environ[THREADS], os.environ[LIBRARY]) == ("3", "glibc.malloc.arena_max=1")
        assert os.environ[ALLOCATOR].endswith(",narenas:2,thp:default")  # the last of a name counts
    assert {name: os.environ[name] for name in settings} == settings
