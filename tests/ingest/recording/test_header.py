"""Facts of a header that are of a wrong type or impossible are ignored and named; the spans are read."""

from __future__ import annotations

import json

import pytest

from recordings import encode, recording_frames, span_record, step_record, write_recording
from stagescope import api
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force

STEP = [
    step_record(0, 0, 100),
    span_record("forward", 0, 40, step=0, stage=0, microbatch=0),
    span_record("backward", 50, 90, step=0, stage=0, microbatch=0),
]
HALF = "\ud800"
NUMBERS = ("rank", "world_size", "pid", "segment", "records_before", "process_start_ns")
TEXTS = ("run", "recording", "host", "boot", "clock", "time_namespace", "device")
NO_NUMBERS = ("1", HALF, 1.5, float("nan"), 2**63, -(2**63), [1], True)
NO_TEXTS = (7, ["a"], {"a": None}, "x" * 100_000)
WRONG = {
    **dict.fromkeys(NUMBERS, NO_NUMBERS),
    **dict.fromkeys(TEXTS, NO_TEXTS),
    "world_size": (*NO_NUMBERS, 0, -1, 10**9, 1e308),
    "rank": (*NO_NUMBERS, -1, 2**31, 2**31 - 1),
    "version": ("2", [], 0, -3, 1.0),
    "schedule": (3, "1F1B", {"name": 5}, []),
    "parallel": ([], {"pp": "0"}, {"pp": -1}, {"pp": 2**40}, {"dp": float("inf")}),
    "schedules": ([], {"a": 1}, {"a": {"name": []}}),
    "restarts": (1, {"torchelastic": []}),
    "forked_from": ("a", 5),
}


def codes(timeline):
    return timeline.diagnostics["code"].to_list()


@pytest.mark.parametrize("name", WRONG)
def test_impossible_facts_are_ignored_and_named(tmp_path, name):
    path = tmp_path / "rank-00003.sscope"
    for value in WRONG[name]:
        timeline = api.read(write_recording(path, STEP, **{name: value}))
        [note] = timeline.diagnostics.filter(code="header.invalid")["message"]
        assert f"{name} " in note
        assert note.isprintable()
        assert len(note) < 200
        assert timeline.spans.height == 2
        assert timeline.ranks["rank"].to_list() == [3 if name == "rank" else 0]


@pytest.mark.parametrize("name", [*WRONG, "frameworks", "device_model"])
def test_null_means_unknown(tmp_path, name):
    timeline = api.read(write_recording(tmp_path / "rank-00000.sscope", STEP, **{name: None}))
    assert codes(timeline) == []
    assert timeline.spans.height == 2


def test_the_limit_on_ranks_bounds_declared_ranks_without_listing_them(tmp_path):
    path = write_recording(tmp_path / "a.sscope", STEP, rank=7, world_size=100_000)
    timeline = api.read(path)
    assert timeline.diagnostics.select("code", "count").rows() == [("ranks.missing", 99_999)]
    with limits_in_force({"ranks": 60}):
        assert (
            "world_size 100000 (expected 1 to 60, --limit ranks=N)"
            in api.read(path).diagnostics["message"][0]
        )


def test_a_rank_beyond_the_limit_is_an_error_that_names_the_limit(tmp_path):
    path = write_recording(tmp_path / "a.sscope", STEP, rank=70)
    refused = pytest.raises(InputError, match=r"rank 70 .expected 0 to 59, --limit ranks=N.")
    with limits_in_force({"ranks": 60}), refused:
        api.read(path)
    write_recording(tmp_path / "b.sscope", STEP)
    with limits_in_force({"ranks": 60}):
        assert codes(api.read(tmp_path)) == ["header.missing"]


@pytest.mark.parametrize("text", [HALF, f"a{HALF}b", "\udfff" * 3])
def test_half_of_a_surrogate_pair_is_read_as_its_escape(tmp_path, text):
    frames = recording_frames(
        [span_record("other", name=1), *STEP], host=text, frameworks={text: {text: text}}
    )
    frames[1] = (fmt.NAMES, json.dumps({"first": 1, "names": [text]}).encode())
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    timeline = api.read(path)
    escaped = text.encode("utf-8", "backslashreplace").decode()
    assert timeline.spans["name"].drop_nulls().to_list() == [escaped]
    assert timeline.ranks["host"].to_list() == [escaped]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (fmt.NAMES, b'{"first": 1e308, "names": ["a"]}'),
        (fmt.NAMES, b'{"first": 4611686018427387904, "names": ["a"]}'),
        (fmt.NAMES, b'{"first": 1, "names": "text"}'),
        (fmt.NAMES, b'{"first": 1, "names": [1]}'),
        (fmt.DROPS, b'{"dropped_spans": 1e30}'),
        (fmt.DROPS, b'{"dropped_spans": -1}'),
        (fmt.END, b'{"spans": 1e308, "dropped_spans": 0}'),
        (fmt.END, b'{"spans": 1, "dropped_spans": 1000000000000000000000000000000}'),
        (fmt.HEADER, b"[[1, 2]]"),
        (fmt.HEADER, b"[" * 100_000),
        (fmt.HEADER, b'{"rank": ' + b"9" * 5000 + b"}"),
        (fmt.HEADER, b"\xff"),
    ],
)
def test_frames_with_impossible_counts_are_counted_as_unknown(kind, payload):
    contents = read_contents(encode([(kind, payload)]))
    assert contents.unknown_frames == {kind: 1}
    assert (contents.names, contents.end, contents.dropped_spans, contents.header) == ({}, None, 0, {})
