"""What worker processes start with."""

import os

import pytest

from stagescope.execution import spawning
from stagescope.execution.spawning import ALLOCATOR, HUGE_PAGES, LIBRARY, THREADS, threads_shared


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


def test_workers_ask_for_huge_pages():
    with threads_shared(2):
        assert "thp:always" in os.environ[ALLOCATOR]
        assert os.environ[LIBRARY] == HUGE_PAGES
    assert LIBRARY not in os.environ


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    monkeypatch.setenv(ALLOCATOR, "narenas:2")
    monkeypatch.setenv(LIBRARY, "glibc.malloc.arena_max=1")
    own = ("3", "narenas:2", "glibc.malloc.arena_max=1")
    with threads_shared(1):
        assert (os.environ[THREADS], os.environ[ALLOCATOR], os.environ[LIBRARY]) == own
    assert (os.environ[THREADS], os.environ[ALLOCATOR], os.environ[LIBRARY]) == own
