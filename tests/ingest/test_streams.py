"""Reading compressed and uncompressed files as bytes."""

import gzip
import io

import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagescope.ingest import streams
from stagescope.ingest.streams import BYTE_ORDER_MARK, GZIP_MAGIC, ZSTD_MAGIC, open_stream
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force

PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
TEXT = bytes(range(256)) * 4000


def bytes_and_damage(path, size_bytes: int = -1) -> tuple[bytes, str | None]:
    with open_stream(path) as stream:
        if size_bytes < 0:
            return stream.read(), stream.damage
        parts = list(iter(lambda: stream.read(size_bytes), b""))
        return b"".join(parts), stream.damage


@pytest.mark.parametrize("packer", PACKERS)
@settings(deadline=None)
@given(content=st.binary(max_size=300), sizes=st.lists(st.integers(1, 50), max_size=9))
def test_any_content_can_be_read_in_any_pieces(tmp_path_factory, packer, content, sizes):
    assume(packer != "plain" or not content.startswith((GZIP_MAGIC, ZSTD_MAGIC)))
    path = tmp_path_factory.mktemp("stream") / "file"
    path.write_bytes(PACKERS[packer](content))
    content = content.removeprefix(BYTE_ORDER_MARK)
    with open_stream(path) as stream:
        found = [stream.read(size) for size in sizes]
        assert b"".join(found) == content[: sum(sizes)]
        assert [len(part) for part in found if part][:-1] == sizes[: max(0, len([p for p in found if p]) - 1)]
        assert stream.read() == content[sum(sizes) :]


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_concatenated_members_are_one_stream(tmp_path, packer):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[packer](b"one ") + PACKERS[packer](b"two"))
    assert bytes_and_damage(path) == (b"one two", None)


def test_zeros_after_the_last_gzip_member_are_ignored(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"all") + bytes(512))
    assert bytes_and_damage(path) == (b"all", None)


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_a_truncated_stream_yields_everything_before_the_cut(tmp_path, packer):
    path = tmp_path / "file"
    packed = PACKERS[packer](TEXT + b"the end")
    path.write_bytes(packed[:-3])
    found, damage = bytes_and_damage(path, 4096)
    assert TEXT.startswith(found) or found.startswith(TEXT)
    assert damage is not None
    assert damage.startswith("the compressed data are truncated, before byte ")


def test_damaged_gzip_data_end_the_stream_with_a_position(tmp_path):
    path = tmp_path / "file"
    packed = bytearray(gzip.compress(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    _, damage = bytes_and_damage(path)
    assert damage is not None
    assert damage.startswith("the gzip data are damaged (")


def test_small_damaged_gzip_data_yield_what_is_before_the_damage(tmp_path):
    path = tmp_path / "file"
    content = "".join(f"line {number}\n" for number in range(5000)).encode()
    packed = bytearray(gzip.compress(content))
    packed[len(packed) * 3 // 4] ^= 0xFF
    path.write_bytes(packed)
    found, damage = bytes_and_damage(path)
    assert damage is not None
    assert len(found) > len(content) // 2
    assert found[: len(content) // 2] == content[: len(content) // 2]


def test_damaged_zstandard_data_end_the_stream_with_a_position(tmp_path):
    path = tmp_path / "file"
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    packed[-1] ^= 0xFF
    path.write_bytes(packed)
    _, damage = bytes_and_damage(path)
    assert damage is not None
    assert damage.startswith("the Zstandard data are damaged (")


def test_a_file_with_a_high_compression_ratio_is_read_in_pieces(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(1 << 26)))
    with open_stream(path) as stream:
        assert stream.read(10) == bytes(10)
        assert len(stream._rest) <= 1 << 22


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_stream(tmp_path / "absent")


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_a_file_that_expands_beyond_the_limit_is_refused(tmp_path, packer):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[packer](TEXT))
    refused = pytest.raises(InputError, match="after decompression is more than the limit of 1000 KiB")
    with limits_in_force({"unpacked": len(TEXT) - 1}), refused:
        bytes_and_damage(path, 4096)
    with limits_in_force({"unpacked": len(TEXT), "whole": len(TEXT)}):
        assert bytes_and_damage(path) == (TEXT, None)


@pytest.mark.parametrize("packer", PACKERS)
def test_a_file_that_is_too_large_to_be_read_as_a_whole_is_refused(tmp_path, packer):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[packer](TEXT))
    with limits_in_force({"whole": len(TEXT) - 1}):
        assert bytes_and_damage(path, 4096)[0] == TEXT
        with pytest.raises(InputError, match=r"read as a whole is .*more than the limit of"):
            bytes_and_damage(path)


def test_a_file_of_an_impossible_compression_ratio_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(zstandard.compress(bytes(100 << 20)))
    with pytest.raises(InputError, match="the compression ratio of one file") as caught:
        bytes_and_damage(path, 1 << 20)
    assert "--limit ratio=" in caught.value.hint


def test_taking_the_beginning_of_a_file_reads_little_more(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    read = []
    monkeypatch.setattr(
        streams, "open_regular", lambda path: CountingReads(path.open("rb", buffering=0), read)
    )
    with open_stream(path) as stream:
        assert len(stream.read(4096)) == 4096
    assert sum(read) < 64 << 10


class CountingReads(io.BufferedReader):
    """A file that notes how many bytes each read returns."""

    def __init__(self, raw, read):
        super().__init__(raw)
        self.read_bytes = read

    def read(self, size=-1):
        found = super().read(size)
        self.read_bytes.append(len(found))
        return found
