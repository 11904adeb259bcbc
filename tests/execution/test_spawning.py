"""What worker processes start with."""

import os

import pytest

from stagescope.execution import spawning
from stagescope.execution.spawning import ALLOCATOR, THREADS, threads_shared


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in (THREADS, ALLOCATOR):
        monkeypatch.delenv(name, raising=False)


def test_workers_share_the_processors_and_keep_memory_for_each_of_their_threads(monkeypatch):
    monkeypatch.setattr(spawning, "core_count", lambda: 16)
    with threads_shared(4):
        assert os.environ[THREADS] == "4"
        assert "narenas:4" in os.environ[ALLOCATOR]
    assert THREADS not in os.environ
    assert ALLOCATOR not in os.environ


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    monkeypatch.setenv(ALLOCATOR, "narenas:2")
    with threads_shared(1):
        assert (os.environ[THREADS], os.environ[ALLOCATOR]) == ("3", "narenas:2")
    assert (os.environ[THREADS], os.environ[ALLOCATOR]) == ("3", "narenas:2")
