"""Read a file as a stream of bytes, decompressed if necessary.

gzip (RFC 1952) and Zstandard (RFC 8878) are detected by their first bytes, not by the file name. A byte order mark,
with which editors on Windows begin UTF-8, is not part of the content; no binary format begins with its bytes. A
truncated or damaged file yields everything before the damage; `ByteStream.damage` then describes what was wrong. What a
file expands to is limited: `unpacked`, `ratio` and `whole` of vocabulary/limits.py.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Protocol

from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import beyond, limit, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_WINDOW_BITS = 31
"""zlib's `wbits` value for a gzip header with a window of 32 KiB."""

INPUT_BYTES = 1 << 18
ZSTD_INPUT_BYTES = 1 << 12
"""Zstandard cannot limit the output of one call, and 4 bytes can expand to 128 KiB; small inputs bound it."""

FIRST_BYTES = 8 << 10
"""Size of the first block: recognizing a file needs its beginning, and not a megabyte of each of 10,000 files."""
OUTPUT_BYTES = 1 << 22

ANY_RATIO_BYTES = 64 << 20
"""Up to this size a file may be compressed to any degree: a short run of zeros is harmless."""


SPECIAL_FILES = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class _Decompressor(Protocol):
    """The common interface of the zlib and zstandard decompressors."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class ByteStream:
    """The bytes of one file, decompressed on the fly; use it in a `with` statement."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises InputError if the system refuses."""
        self.path = path
        self.damage: str | None = None
        """Why the stream ended early; None while no damage was found."""
        self.mark_bytes = 0
        """Length of the byte order mark that was skipped, once a byte has been read."""
        try:
            self._file: IO[bytes] = open_regular(path)
            magic = self._file.read(len(ZSTD_MAGIC))
            self._file.seek(0)
        except FileNotFoundError:
            raise InputError.no_such_path(path) from None
        except OSError as reason:
            raise InputError.cannot_read(path, reason) from reason
        self._is_packed = magic.startswith((GZIP_MAGIC, ZSTD_MAGIC))
        self._blocks = self._without_mark(self._within_limits(self._unpacked(magic)))
        self._rest = memoryview(b"")

    def read(self, size_bytes: int = -1) -> bytes:
        """Return the next `size_bytes` bytes, fewer only at the end; all remaining bytes if negative.

        Raises InputError if the file exceeds a limit: `whole` for all bytes, otherwise `unpacked` and `ratio`.
        """
        if size_bytes < 0:
            return self._read_rest()
        parts: list[bytes | memoryview] = []
        found = 0
        while found < size_bytes:
            if not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._rest = memoryview(block)
            part = self._rest[: size_bytes - found]
            self._rest = self._rest[len(part) :]
            found += len(part)
            parts.append(part)
        return b"".join(parts)

    def _read_rest(self) -> bytes:
        """Return all remaining bytes. Joining parts would need their size twice; a BytesIO gives its content away."""
        if not self._is_packed:
            require("whole", os.fstat(self._file.fileno()).st_size, self.path)
        found = io.BytesIO()
        found.write(self._rest)
        self._rest = memoryview(b"")
        for block in self._blocks:
            if found.tell() + len(block) > limit("whole"):
                raise beyond("whole", self.path)
            found.write(block)
        return found.getvalue()

    def __enter__(self) -> Self:
        """Return the open stream."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def _within_limits(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the blocks; raise InputError as soon as they are larger together than the limits allow."""
        unpacked = 0
        for block in blocks:
            unpacked += len(block)
            if self._is_packed and unpacked > limit("unpacked"):
                raise beyond("unpacked", self.path)
            allowed = max(ANY_RATIO_BYTES, limit("ratio") * self._file.tell())
            if self._is_packed and unpacked > allowed:
                raise beyond("ratio", self.path)
            yield block

    def _without_mark(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        begin = b""
        for block in blocks:
            begin += block
            if len(begin) >= len(BYTE_ORDER_MARK):
                break
        content = begin.removeprefix(BYTE_ORDER_MARK)
        self.mark_bytes = len(begin) - len(content)
        yield content
        yield from blocks

    def _unpacked(self, magic: bytes) -> Iterator[bytes]:
        try:
            if magic.startswith(GZIP_MAGIC):
                yield from self._gzip()
            elif magic.startswith(ZSTD_MAGIC):
                yield from self._zstd()
            else:
                size_bytes = FIRST_BYTES
                while block := self._file.read(size_bytes):
                    yield block
                    size_bytes = OUTPUT_BYTES
        except OSError as reason:
            raise InputError.cannot_read(self.path, reason) from reason

    def _gzip(self) -> Iterator[bytes]:
        """Yield the content of all members of a gzip file, at most OUTPUT_BYTES at a time."""
        unpacker = zlib.decompressobj(GZIP_WINDOW_BITS)
        data = b""
        while data := data or self._file.read(INPUT_BYTES):
            before = unpacker.copy()
            try:
                block = unpacker.decompress(data, OUTPUT_BYTES)
            except zlib.error as error:  # which takes the output of the whole call with it
                yield _before_damage(before, data)
                self._note_damage(f"the gzip data are damaged ({error})")
                return
            yield block
            data = unpacker.unconsumed_tail
            if unpacker.eof:  # another member may follow, or zero padding (RFC 1952, 2.2)
                data = (unpacker.unused_data or self._file.read(INPUT_BYTES)).lstrip(b"\0")
                unpacker = zlib.decompressobj(GZIP_WINDOW_BITS) if data else unpacker
        self._check_end(unpacker)

    def _zstd(self) -> Iterator[bytes]:
        """Yield the content of all frames of a Zstandard file."""
        import zstandard  # noqa: PLC0415 - a library that few files need

        unpacker = zstandard.ZstdDecompressor().decompressobj()
        data = b""
        try:
            while data := data or self._file.read(ZSTD_INPUT_BYTES):
                yield unpacker.decompress(data)
                data = b""
                if unpacker.eof and (data := unpacker.unused_data or self._file.read(ZSTD_INPUT_BYTES)):
                    unpacker = zstandard.ZstdDecompressor().decompressobj()
        except zstandard.ZstdError as error:
            self._note_damage(f"the Zstandard data are damaged ({error})")
            return
        self._check_end(unpacker)

    def _check_end(self, unpacker: _Decompressor) -> None:
        if not unpacker.eof:
            self._note_damage("the compressed data are truncated")

    def _note_damage(self, what: str) -> None:
        self.damage = f"{what}, before byte {self._file.tell()} of the file"


def _before_damage(unpacker: zlib._Decompress, data: bytes) -> bytes:
    """Return what compressed data expand to before the byte at which they are found to be damaged."""
    found = io.BytesIO()
    with suppress(zlib.error):
        for at in range(len(data)):
            found.write(unpacker.decompress(data[at : at + 1]))
    return found.getvalue()


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file; a pipe would block, and a device may never end. Raises InputError, OSError."""
    require_regular(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        require_regular(path, os.fstat(descriptor).st_mode)  # it may have been replaced since
    except InputError:
        file.close()
        raise
    return file


def require_regular(path: Path, mode: int) -> None:
    """Raise InputError if `mode`, from a stat of the file that `path` leads to, is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kinds = (name for is_kind, name in SPECIAL_FILES if is_kind(mode))
        raise InputError.not_a_file(path, next(kinds, "no regular file"))


def open_stream(path: Path) -> ByteStream:
    """Return `path` as a stream of decompressed bytes; raises InputError if it cannot be opened."""
    return ByteStream(path)
