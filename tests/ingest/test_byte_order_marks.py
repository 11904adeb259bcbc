"""Text that begins with a byte order mark, as editors on Windows write it."""

import gzip

import pytest

from fuzz.formats import FORMATS
from stagescope.api import read
from stagescope.ingest.streams import BYTE_ORDER_MARK, open_stream

TEXTS = [
    *("kineto", "chrome", "chrome, mapped", "csv", "otlp", "rocprof"),
    *("paddle log", "paddle fleet", "paddle profiler", "primus"),
]


@pytest.mark.parametrize("one", [one for one in FORMATS if one.name in TEXTS], ids=lambda one: one.name)
def test_a_mark_changes_nothing_in_any_format_of_text(tmp_path, one):
    one.write(tmp_path)
    before = read(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(BYTE_ORDER_MARK + path.read_bytes())
    after = read(tmp_path)
    assert after.spans.equals(before.spans)
    assert after.diagnostics.equals(before.diagnostics)


@pytest.mark.parametrize("content", [b"", b"a", b"\xef\xbb", b"text", BYTE_ORDER_MARK])
def test_only_the_mark_at_the_beginning_is_skipped(tmp_path, content):
    path = tmp_path / "text"
    for packed in (bytes, gzip.compress):
        path.write_bytes(packed(content))
        with open_stream(path) as stream:
            assert stream.read() == content.removeprefix(BYTE_ORDER_MARK)
        path.write_bytes(packed(BYTE_ORDER_MARK + content))
        with open_stream(path) as stream:
            assert stream.read() == content
            assert stream.mark_bytes == len(BYTE_ORDER_MARK)


def test_positions_of_damage_are_those_in_the_file(tmp_path):
    (one,) = (one for one in FORMATS if one.name == "chrome")
    one.write(tmp_path)
    path = tmp_path / "trace.json"
    data = path.read_bytes()[:-40]
    places = []
    for begin in (b"", BYTE_ORDER_MARK):
        path.write_bytes(begin + data)
        places.append(read(path).diagnostics.filter(code="input.truncated")["location"][0])
    assert [int(place.removeprefix("byte ")) for place in places] == [len(data), len(data) + 3]
