"""Streaming Chrome traces: intact, truncated, damaged, malicious."""

import gzip
import json

import msgspec
import pytest
import zstandard

from stagescope.ingest.trace_json import trace_events
from stagescope.ingest.trace_json.trace_events import EventStream
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force


class Event(msgspec.Struct):
    name: str = ""
    ts: float = 0.0
    args: dict = {}


EVENTS = [
    {"name": f"e{n}", "ts": n, "args": {"text": '}, {"ph"', "list": [{"a": 1}, {"b": 2}]}} for n in range(200)
]


@pytest.fixture
def stream(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", 512)

    def read(content, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        found = EventStream(path, msgspec.json.Decoder(list[Event]))
        return found, [event.name for piece in found.pieces() for event in piece]

    return read


def names(count):
    return [f"e{n}" for n in range(count)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_pieces_yield_all_events_and_the_surrounding_facts(stream, indent, pack):
    text = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "baseTimeNanoseconds": 7}, indent=indent)
    found, read = stream(pack(text.encode()))
    assert read == names(200)
    assert found.facts == {"schemaVersion": 1, "baseTimeNanoseconds": 7}
    assert found.diagnostics() == []


def test_the_array_form_is_read_with_and_without_its_closing_bracket(stream):
    text = json.dumps(EVENTS)
    found, read = stream(text)
    assert (read, found.diagnostics()) == (names(200), [])
    # The format allows to omit it, and a killed process omits it.
    for content in (text[:-1], text[:-1] + ",\n"):
        found, read = stream(content)
        assert read == names(200)
        assert codes(found) == [("warning", "input.truncated", 1)]


def codes(found):
    return [(row.severity, row.code, row.count) for row in found.diagnostics()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"e50"', '"e50'),
        lambda text: text.replace('"e50"', '""e50"'),
        lambda text: text.replace('{"ph": "X", "name": "e50"', '"ph": "X", "name": "e50"'),
        lambda text: text.replace('{"ph": "X", "name": "e50"', '{{"ph": "X", "name": "e50"'),
        lambda text: text.replace(', {"ph": "X", "name": "e50"', '}, {"ph": "X", "name": "e50"'),
        lambda text: text.replace(', {"ph": "X", "name": "e50"', '], {"ph": "X", "name": "e50"'),
        lambda text: text.replace(', {"ph": "X", "name": "e50"', ']}, {"ph": "X", "name": "e50"'),
        lambda text: text.replace(', {"ph": "X", "name": "e50"', '{"ph": "X", "name": "e50"'),
        lambda text: text.replace(', {"ph": "X", "name": "e50"', ',, {"ph": "X", "name": "e50"'),
    ],
)
def test_a_bracket_or_quote_too_many_or_missing_costs_the_events_next_to_it(stream, damage):
    text = json.dumps({"traceEvents": [{"ph": "X", **event} for event in EVENTS], "baseTimeNanoseconds": 7})
    found, read = stream(damage(text))
    assert set(names(200)) - set(read) <= {"e49", "e50"}
    (error,) = found.diagnostics()
    assert (error.code, error.count in (1, 2)) == ("events.dropped", True)
    assert found.facts == {"baseTimeNanoseconds": 7}
    place = int(error.location.removeprefix("first at byte "))
    assert min(abs(place - text.index(f'{{"ph": "X", "name": "e{number}"')) for number in (49, 50)) <= 2


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ('], "baseTimeNanoseconds": 7}{"traceEvents": []}', "file.damaged"),
        ('], "baseTimeNanoseconds": 7}\0\0\0', "file.damaged"),
        ('], "baseTimeNanoseconds": 7, "traceEvents": []}', "file.damaged"),
        ('], "baseTimeNanoseconds": 7, "traceName": "x', "input.truncated"),
        ("]", "input.truncated"),
        ("],}", "file.damaged"),
        ("] x", "file.damaged"),
    ],
)
def test_what_follows_the_list_of_events_is_checked_to_the_end(stream, end, code):
    found, read = stream(json.dumps({"traceEvents": EVENTS})[:-2] + end)
    assert read == names(200)
    assert codes(found) == [("error", code, 1)]
    assert found.facts.get("baseTimeNanoseconds", 7) == 7
    assert "base" not in end or found.facts


def test_damage_before_the_list_of_events_is_reported(stream):
    text = json.dumps({"distributedInfo": {"rank": 3}, "traceName": "x", "traceEvents": EVENTS})
    found, read = stream(text.replace('"traceName": "x"', '"traceName": "x'))
    assert (read, codes(found)) == (names(200), [("error", "file.damaged", 1)])
    assert found.facts == {"distributedInfo": {"rank": 3}}


def test_text_that_is_not_unicode_is_replaced_and_reported(stream):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    found, read = stream(
        text.replace(b'"e7"', b'"e7\xff"').replace(b'"e8"', rb'"\udc80 \ud83d\ude00 \\ud800"')
    )
    assert read[7:9] == ["e7\ufffd", "\ufffd \U0001f600 \\ud800"]
    assert codes(found) == [("warning", "text.invalid", 1)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_truncated_anywhere_yields_the_events_before_the_cut_and_an_error(stream, pack):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    for cut in range(200, len(text) - 3, 997):
        packed = pack(text[:cut])
        found, read = stream(packed[:-12] if pack is gzip.compress else packed)
        assert read == names(len(read))
        (error,) = found.diagnostics()
        assert (error.severity, error.code) == ("error", "input.truncated")


def test_an_event_with_invalid_json_does_not_affect_the_others(stream):
    bad = [
        '{"name": "x", "ts": 1e400}',
        '{"name": "x", "ts": NaN}',
        '{"name": "x", "ts": "soon"}',
        '{"name" "x"}',
    ]
    texts = [json.dumps(event) for event in EVENTS]
    for place, one in zip((0, 50, 100, 199), bad, strict=True):
        texts.insert(place, one)
    found, read = stream('{"traceEvents": [' + ", ".join(texts) + "]}")
    assert read == names(200)
    (error,) = found.diagnostics()
    assert (error.severity, error.count) == ("error", 4)


def test_invalid_numbers_in_unused_fields_are_ignored(stream):
    found, read = stream(
        '{"traceEvents": [{"name": "e0", "args": {"x": NaN, "y": -Infinity}}, {}, {"name": "e1"}]}'
    )
    assert (read, found.diagnostics()) == (["e0", "", "e1"], [])


def test_an_event_nested_100000_deep_is_dropped_alone(stream):
    deep = '{"name": "deep", "args": ' + '{"a":' * 100_000 + "1" + "}" * 100_001
    found, read = stream('{"traceEvents": [{"name": "e0"}, ' + deep + ', {"name": "e1"}]}')
    assert read == names(2)
    assert [row.count for row in found.diagnostics()] == [1]


def test_a_giant_event_is_skipped_in_bounded_memory(stream):
    giant = json.dumps({"name": "x" * 100_000})
    with limits_in_force({"string": 4096}):
        found, read = stream(
            '{"traceEvents": [{"name": "e0"}, ' + giant + ', {"name": "e1"}, {"name": "e2"}]}'
        )
    assert read[0] == "e0"
    assert read[-1] == "e2"
    (error,) = found.diagnostics()
    assert (error.severity, "larger than" in error.message) == ("error", True)


def test_a_field_after_the_list_of_events_may_be_larger_than_any_event(stream):
    text = json.dumps({"traceEvents": EVENTS, "baseTimeNanoseconds": 7, "systemTrace": "x" * 100_000})
    with limits_in_force({"string": 4096}):
        found, read = stream(text)
    assert (read, found.diagnostics()) == (names(200), [])
    assert found.facts["baseTimeNanoseconds"] == 7


def test_a_file_that_expands_beyond_the_limits_is_refused(stream):
    bomb = gzip.compress(b'{"traceEvents": [{"name": "e0"}, ' + b" " * (1 << 20))
    with limits_in_force({"unpacked": 1 << 18}), pytest.raises(InputError, match="limit of 256 KiB"):
        stream(bomb)


def test_a_file_without_a_list_of_events_is_rejected(stream):
    with pytest.raises(InputError, match="no list of events"):
        stream('{"schemaVersion": 1}')


def test_an_empty_list_is_valid(stream):
    found, read = stream('{"traceEvents": []}')
    assert (read, found.diagnostics()) == ([], [])
