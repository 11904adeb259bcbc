"""The cache directory: where it is, who may enter it, and which entries are removed first."""

from __future__ import annotations

import os
import stat
import sys
import time

import pytest

from stagescope.api import clear_cache
from stagescope.storage import cache_directory as cache


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(directory, name, size_bytes, age_s):
    made = directory / cache.RUNS / (name * cache.DIGITS)
    made.mkdir(parents=True)
    (made / "file").write_bytes(b"x" * size_bytes)
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def test_its_place_is_the_named_one_or_that_of_the_desktop_specification(tmp_path, monkeypatch):
    monkeypatch.delenv("STAGESCOPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "stagescope"
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "own"))
    assert cache.cache_directory() == tmp_path / "own"
    monkeypatch.setenv("STAGESCOPE_CACHE", "OFF")
    assert cache.is_off()
    assert cache.cache_directory() == tmp_path / "stagescope"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_only_its_owner_may_enter_it(directory):
    assert cache.objects_directory().parent == directory
    assert stat.S_IMODE(cache.objects_directory().stat().st_mode) == 0o700


def test_without_a_place_to_write_to_a_temporary_one_is_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "file" / "cache"))
    assert cache.objects_directory().is_dir()
    monkeypatch.setenv("STAGESCOPE_CACHE", "off")
    assert cache.objects_directory().is_dir()


def test_entries_used_least_recently_are_removed_first_and_those_in_use_stay(directory, monkeypatch):
    oldest, older, newest = (
        entry(directory, name, 100, hours * 3600) for name, hours in (("a", 9), ("b", 5), ("c", 0))
    )
    monkeypatch.setattr(cache, "MOST_BYTES", 350)
    cache.free_space_for(50, newest)
    assert [oldest.exists(), older.exists(), newest.exists()] == [True, True, True]
    cache.free_space_for(60, newest)
    assert [oldest.exists(), older.exists(), newest.exists()] == [False, True, True]
    cache.free_space_for(10_000, newest)
    assert cache.entries() == [newest]
    in_use = entry(directory, "d", 100, 10)
    cache.free_space_for(10_000, newest)
    assert in_use.exists()


def test_folders_of_other_programs_are_no_entries_and_stay(directory, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    own = directory / cache.RUNS / "llama-70b"
    (own / "checkpoints").mkdir(parents=True)
    os.utime(own, (0, 0))
    linked = directory / cache.RUNS / ("f" * cache.DIGITS)
    linked.symlink_to(own)
    newest = entry(directory, "a", 100, 0)
    assert cache.entries() == [newest]
    cache.free_space_for(10_000, newest)
    assert [kept.path for kept in clear_cache()] == [newest]
    assert sorted((directory / cache.RUNS).iterdir()) == [linked, own]
    assert (own / "checkpoints").is_dir()


@pytest.mark.usefixtures("directory")
def test_no_more_than_half_of_the_free_disk_is_kept(monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1000}))
    assert cache.most_bytes(kept_bytes=200) == 600
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 10**15}))
    assert cache.most_bytes(kept_bytes=200) == cache.MOST_BYTES
