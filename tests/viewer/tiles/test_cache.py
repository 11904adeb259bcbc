import os
import stat
import time

import pytest

from stagescope.storage.cache_directory import DIGITS
from stagescope.viewer.tiles import cache
from stagescope.viewer.tiles.cache import cache_folder, content_key, fingerprint_files, keep


def key(place, content):
    """Return a name as content_key() makes them."""
    return f"{place * DIGITS}-{content * DIGITS}"


FIRST, CHANGED, OTHER, THIRD = key("a", "1"), key("a", "2"), key("b", "1"), key("c", "1")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def fill(folder):
    (folder / "spans").write_bytes(b"x" * 100)


def test_what_was_made_once_is_found_again(root):
    made = []

    def make(folder):
        made.append(folder)
        fill(folder)

    first, second = (keep(FIRST, make, root) for _ in range(2))
    assert first == second == root / FIRST
    assert len(made) == 1
    assert (first / "spans").exists()


def test_whatever_stops_the_making_leaves_nothing(root):
    def make(folder):
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(FIRST, make, root)
    assert list(root.iterdir()) == []


def test_the_folder_is_for_its_owner_alone(root):
    keep(FIRST, fill, root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / FIRST).stat().st_mode) == 0o700


def test_of_the_same_input_only_the_newest_is_kept(root):
    for name in (FIRST, OTHER, CHANGED):
        keep(name, fill, root)
    assert {path.name for path in root.iterdir()} == {CHANGED, OTHER}


def test_another_process_that_was_faster_is_no_error(root):
    def make(folder):
        fill(folder)
        keep(FIRST, fill, root)

    assert keep(FIRST, make, root) == root / FIRST
    assert [path.name for path in root.iterdir()] == [FIRST]


def test_least_recently_used_folder_is_evicted(root, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 250)
    for number, name in enumerate((FIRST, OTHER)):
        os.utime(keep(name, fill, root), (number, number))
    os.utime(keep(FIRST, fill, root))
    keep(THIRD, fill, root)
    assert {path.name for path in root.iterdir()} == {FIRST, THIRD}


def test_folders_of_other_programs_stay(root, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    (root / "llama-70b").mkdir(parents=True)
    fill(root / "llama-70b")
    keep(FIRST, fill, root)
    assert {path.name for path in root.iterdir()} == {FIRST, "llama-70b"}


def test_what_an_ended_process_left_unfinished_is_removed(root):
    root.mkdir()
    ended, running = root / f"{cache.UNFINISHED}999999999-x", root / f"{cache.UNFINISHED}{os.getpid()}-x"
    for folder in (ended, running):
        folder.mkdir()
    keep(FIRST, fill, root)
    assert {path.name for path in root.iterdir()} == {FIRST, running.name}


def test_names_change_with_what_is_read_and_how(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 10_000)
    other.write_bytes(b"a" * 10_000)
    key = content_key([one], "parameters")
    assert content_key([one], "parameters") == key
    assert content_key([one], "others") != key
    assert content_key([other], "parameters") != key
    before = one.stat()
    one.write_bytes(b"a" * 9_999 + b"b")
    os.utime(one, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = content_key([one], "parameters")
    assert changed != key
    assert changed.partition("-")[0] == key.partition("-")[0]


def test_fingerprint_changes_when_a_file_is_written_added_or_removed(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a")
    fingerprint = fingerprint_files([one])
    assert fingerprint_files([one]) == fingerprint
    other.write_bytes(b"")
    assert fingerprint_files([one, other]) != fingerprint
    one.write_bytes(b"ab")
    assert fingerprint_files([one]) != fingerprint
    longer = fingerprint_files([one])
    os.utime(one, ns=(time.time_ns(), time.time_ns() + 10))
    assert fingerprint_files([one]) != longer


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "stagescope" / "levels"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / "home" / ".cache" / "stagescope" / "levels"
