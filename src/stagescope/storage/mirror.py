"""Copies of the objects below an address, in the cache directory, where readers find them like other files.

    objects/4f2a.../lock             one process at a time copies
    objects/4f2a.../index.jsonl      size and version of each copy that is complete; the last line of a name counts
    objects/4f2a.../unfinished/      copies that are being made
    objects/4f2a.../files/recordings the copies: a name that ends like the address

A copy is used while the object has the same size and version (ETag), and is complete or absent: it is renamed when it
is complete. Objects that the caller does not select are not copied before `fetch_missing` asks for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from stagescope.storage import errors
from stagescope.storage.cache_directory import (
    DIGITS,
    describe,
    free_space_for,
    make_private,
    objects_directory,
    touch,
)
from stagescope.storage.copying import copy_all
from stagescope.storage.locking import locked
from stagescope.storage.object_store import ObjectStore, Remote
from stagescope.vocabulary.place_names import name_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagescope.storage.addresses import Address

    Progress = Callable[[int, int], object]

FRESH_S = 30.0
"""How long a list of objects is used before the store is asked again: one command looks at its paths several times."""
MOST_NAME_BYTES = 255
WHERE = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
"""Environment variables that decide which store an address means."""
INDEX, UNFINISHED, FILES = "index.jsonl", "unfinished", "files"
on_fetched: ContextVar[Progress] = ContextVar("on_fetched", default=lambda _done, _all: None)
"""Called with the bytes fetched so far and all bytes, first with 0."""


@dataclass
class Mirror:
    """The copies of what is below an address. `objects` has what the store listed, by name."""

    store: ObjectStore
    entry: Path
    objects: dict[str, Remote]
    is_single: bool
    looked: float = field(default_factory=time.monotonic)

    @property
    def root(self) -> Path:
        """The copy of the object, or the directory with those of all objects below the address."""
        address = self.store.address
        return self.entry / FILES / (address.key or address.bucket).rpartition("/")[2]

    def file(self, name: str) -> Path:
        """Return the place of a copy. Raises InputError for a name that would lead elsewhere."""
        parts = PurePosixPath(name).parts
        is_usable = all(
            part not in ("..", "/") and len(part.encode(errors="surrogatepass")) <= MOST_NAME_BYTES
            for part in parts
        )
        if not is_usable or "/".join(parts) != name or any(sign in name for sign in "\0\\"):
            raise errors.impossible_name(f"{self.store.address}/{name}")
        return self.root if self.is_single else self.root.joinpath(*parts)


_mirrors: dict[tuple[Address, Path], Mirror] = {}


def mirror(address: Address, select: Callable[[Iterable[str]], Iterable[str]]) -> Path:
    """Return the file or directory of this machine with the copies of what is at an address.

    `select` gets the names of all objects below it, and returns those to copy now. Raises InputError if there is
    nothing, or if the store or the cache cannot be used, and CommandError if the library for it is not installed.
    """
    entry = objects_directory() / _key(address)
    known = _mirrors.get((address, entry))
    if known is None or time.monotonic() - known.looked > FRESH_S:
        store = ObjectStore(address) if known is None else known.store
        objects = store.listed()
        is_single = {each.path for each in objects.values()} == {address.path}
        known = Mirror(store, entry, objects, is_single)
        _fetch(known, list(objects if is_single else select(objects)))
        _mirrors[address, entry] = known
    name_place(str(known.root), str(address))
    touch(entry)
    return known.root


def fetch_missing(files: Iterable[Path]) -> None:
    """Copy files that belong to a mirror and are not there yet; nothing happens to other files.

    Raises InputError as `mirror` does.
    """
    wanted = list(files) if _mirrors else []
    for known in list(_mirrors.values()):
        names = [name for file in wanted if (name := _name_in(known, file)) is not None]
        if names:
            _fetch(known, names)
            touch(known.entry)


def size_of(file: Path) -> int | None:
    """Return the size of a file, also of one that a mirror would copy; None if there is none."""
    for known in _mirrors.values():
        name = _name_in(known, file)
        if name is not None:
            return known.objects[name].size_bytes
    try:
        return file.stat().st_size
    except OSError:
        return None


def _name_in(known: Mirror, file: Path) -> str | None:
    """Return the name of an object by the place of its copy."""
    if known.is_single:
        return next(iter(known.objects)) if file == known.root else None
    if not file.is_relative_to(known.root):
        return None
    name = file.relative_to(known.root).as_posix()
    return name if name in known.objects else None


def _key(address: Address) -> str:
    text = "\0".join([str(address), *(os.environ.get(name, "") for name in WHERE)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _fetch(known: Mirror, names: list[str]) -> None:
    """Copy objects whose copies are missing or of another version, and remove those of objects that are gone."""
    try:
        with locked(make_private(known.entry)):
            complete = _complete(known, _read_index(known))
            missing = [name for name in dict.fromkeys(names) if name not in complete]
            if missing:
                describe(known.entry, str(known.store.address))
                _fetch_now(known, missing)
    except OSError as reason:
        failure = errors.cannot_keep(known.entry, reason)
    else:
        return
    raise failure


def _fetch_now(known: Mirror, missing: list[str]) -> None:
    need_bytes = sum(known.objects[name].size_bytes for name in missing)
    free_space_for(need_bytes, known.entry)
    free_bytes = shutil.disk_usage(known.entry).free
    if need_bytes > free_bytes:
        raise errors.no_space(str(known.store.address), need_bytes, known.entry.parent.parent, free_bytes)
    places = {name: known.file(name) for name in missing}
    unfinished = make_private(known.entry / UNFINISHED)
    copies = {name: (known.objects[name], unfinished / str(number)) for number, name in enumerate(missing)}
    try:
        for name in copy_all(known.store, copies, on_fetched.get()):
            _keep(known, name, copies[name][1], places[name])
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    now = known.store.listed()
    for name in missing:
        if now.get(name) != known.objects[name]:
            raise errors.changed(f"{known.store.address.scheme}://{known.objects[name].path}")


def _keep(known: Mirror, name: str, made: Path, place: Path) -> None:
    """Move a complete copy to its place, and note which version it is."""
    remote = known.objects[name]
    make_private(place.parent)
    if remote.modified_ns is not None:
        os.utime(made, ns=(remote.modified_ns, remote.modified_ns))
    made.replace(place)
    with (known.entry / INDEX).open("a", encoding="utf-8") as index:
        index.write(json.dumps([name, remote.size_bytes, remote.version]) + "\n")


def _read_index(known: Mirror) -> dict[str, tuple[int, str]]:
    """Return size and version of all copies that were made."""
    found: dict[str, tuple[int, str]] = {}
    try:
        lines = (known.entry / INDEX).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        shutil.rmtree(known.entry / FILES, ignore_errors=True)  # of which nothing is known
        return found
    for line in lines:
        with suppress(ValueError, TypeError):  # the last line of a process that was killed
            name, size_bytes, version = json.loads(line)
            found[name] = (size_bytes, version)
    return found


def _complete(known: Mirror, made: dict[str, tuple[int, str]]) -> set[str]:
    """Return the names of the copies that are complete and of the version that the store has; remove all others.

    Files that are no copies stay, such as the report of a stored run, which is saved beside it.
    """
    shutil.rmtree(known.entry / UNFINISHED, ignore_errors=True)
    complete = set()
    for name, version in made.items():
        remote = known.objects.get(name)
        place = known.file(name)
        if remote is not None and (remote.size_bytes, remote.version) == version and _has_size(place, remote):
            complete.add(name)
        else:
            _remove(place, known.entry)
    return complete


def _has_size(file: Path, remote: Remote) -> bool:
    try:
        return file.stat().st_size == remote.size_bytes
    except OSError:
        return False


def _remove(file: Path, entry: Path) -> None:
    """Remove a file and the directories that it leaves empty: an object may have their name now."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == entry:
                return
            folder.rmdir()
