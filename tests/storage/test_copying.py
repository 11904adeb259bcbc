"""Several objects are copied at once, with progress in bytes, and whatever goes wrong ends all copies."""

from __future__ import annotations

import pytest

from stagescope.storage.copying import copy_all
from stagescope.storage.object_store import Remote


class Store:
    """Copies a block of each object, or fails."""

    def __init__(self, failing=None):
        self.failing = failing

    def copy(self, remote, to, on_bytes):
        if remote.path == self.failing:
            raise OSError(28, "No space left on device")
        to.write_bytes(b"x" * remote.size_bytes)
        on_bytes(remote.size_bytes)


def copies(tmp_path, count):
    return {name: (Remote(name, 10, "1", None), tmp_path / name) for name in map(str, range(count))}


def test_every_object_is_copied_and_the_bytes_are_counted(tmp_path):
    seen = []
    wanted = copies(tmp_path, 20)
    assert sorted(copy_all(Store(), wanted, lambda *counts: seen.append(counts))) == sorted(wanted)
    assert seen[0] == (0, 200)
    assert seen[-1] == (200, 200)
    assert seen == sorted(seen)


def test_an_error_of_one_copy_ends_all(tmp_path):
    with pytest.raises(OSError, match="No space"):
        list(copy_all(Store("3"), copies(tmp_path, 20), lambda *_: None))


def test_ctrl_c_ends_all(tmp_path):
    def interrupt(done, _):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(copy_all(Store(), copies(tmp_path, 20), interrupt))
