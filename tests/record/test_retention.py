"""Bounds in time and steps: at least so much is kept, the rest is counted, and readers survive disappearing files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from children import clean_environment
from pipeline_recordings import MICROBATCHES, RANKS, planted_training
from stagescope import api
from stagescope.ingest.recording import reader
from stagescope.ingest.recording.following import Follower
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import retention, session
from stagescope.record.recording import Recording
from stagescope.record.retention import (
    DEFAULT_MAX_BYTES,
    FULL,
    MIN_MAX_BYTES,
    SEGMENTS,
    Kept,
    Retention,
    parse_keep,
)
from stagescope.vocabulary.errors import UsageError

pytestmark = pytest.mark.usefixtures("just_booted")
STEP_S = 1.0


@pytest.mark.parametrize(
    ("keep", "max_bytes", "expected"),
    [
        (None, None, None),
        (None, "512MiB", Kept(2**29)),
        (None, 0, Kept(0)),
        ("500MB", None, Kept(500_000_000)),
        ("30m", None, Kept(DEFAULT_MAX_BYTES, Retention(1800))),
        ("2h", None, Kept(DEFAULT_MAX_BYTES, Retention(7200))),
        ("7d", 0, Kept(0, Retention(7 * 86400))),
        (" 1GB , 45s ", None, Kept(10**9, Retention(45))),
        ("200steps", None, Kept(DEFAULT_MAX_BYTES, Retention(0, 200))),
        ("1 step,10min,2MiB", None, Kept(2**21, Retention(600, 1))),
        ("all", None, Kept(0)),
        ("ALL", "2MiB", None),
    ],
)
def test_bounds_are_read(keep, max_bytes, expected):
    if keep == "ALL":
        with pytest.raises(UsageError, match="found --keep ALL and --max-bytes 2MiB"):
            parse_keep(keep, max_bytes)
    else:
        assert parse_keep(keep, max_bytes) == expected


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        ("", "expected bounds such as 500MB, 30m"),
        ("30", "expected bounds"),
        ("30M", "expected bounds"),
        ("-3steps", "expected bounds"),
        ("1.5h", "expected bounds"),
        ("\N{ARABIC-INDIC DIGIT ONE}m", "expected bounds"),
        ("0steps", "expected bounds"),
        ("9" * 40 + "steps", "expected bounds"),
        ("30m,2h", "two bounds of seconds"),
        ("9s", "the shortest time is 10s"),
        ("500kB", "too small for a recording"),
        ("30m,", "expected bounds"),
    ],
)
def test_other_bounds_are_refused(keep, reason):
    with pytest.raises(UsageError, match=reason):
        parse_keep(keep)


@pytest.fixture
def clock(monkeypatch):
    """Return a clock, in seconds, that the age of segments is measured with."""
    now = [1000.0]
    monkeypatch.setattr(retention.time, "monotonic", lambda: now[0])
    return now


def recordings_of(directory, *, steps=0, seconds=0, max_bytes=0):
    found = []
    for rank in range(RANKS):
        recording = Recording(str(directory), max_bytes, Retention(seconds, steps))
        recording.describe({
            "version": 2, "rank": rank, "world_size": RANKS, "host": "h", "boot": "b", "pid": rank, "run": "r",
            "recording": f"r{rank}", "process_start_ns": 5, "parallel": {"pp": rank, "pp_size": RANKS},
            "schedule": {"name": "GPipe", "microbatches": MICROBATCHES},
        })  # fmt: skip
        found.append(recording)
    return found


def train(recordings, clock, steps, *, first=0, uneven=True):
    """Write the steps of a planted training, each in two pieces; on each rank the pieces end elsewhere."""
    for step in range(first, steps):
        clock[0] += STEP_S
        for rank, recording in enumerate(recordings):
            records = TRAINING[rank][step]
            place = 1 + rank if uneven else len(records)
            recording.write_spans(b"".join(records[:place]))
            recording.write_spans(b"".join(records[place:]))
            recording.write_anchor_if_due()
        yield step


TRAINING = planted_training(120, 0, (), 1)


def whole_steps(directory, rank):
    """Return the steps of which all spans of a rank are there."""
    files = directory.glob(f"rank-{rank:05}*.sscope")
    steps = [step for file in files for step in read_contents(file.read_bytes()).spans["step"].tolist()]
    return [step for step in sorted(set(steps)) if steps.count(step) == len(TRAINING[rank][step])]


@pytest.mark.parametrize(("steps", "seconds"), [(10, 0), (1, 0), (0, 10), (30, 12)])
def test_at_least_the_bound_is_kept_and_not_much_more(tmp_path, clock, steps, seconds):
    recordings = recordings_of(tmp_path, steps=steps, seconds=seconds)
    least = min(bound for bound in (steps, seconds) if bound)
    for step in train(recordings, clock, 120):
        for rank in range(RANKS):
            kept = whole_steps(tmp_path, rank)
            assert len(kept) >= min(least, step + 1)
            assert kept == list(range(kept[0], step + 1))
            most = max(-(-least // FULL) + 2, retention.LEAST_SEGMENT_S + 2 if steps else 0)
            assert len(kept) <= SEGMENTS * most
    assert len(list(tmp_path.iterdir())) == RANKS * SEGMENTS


def test_discarded_spans_are_counted_with_the_bound_and_partial_steps_are_not_reported(tmp_path, clock):
    recordings = recordings_of(tmp_path, steps=30)
    assert len(list(train(recordings, clock, 90))) == 90
    for recording in recordings:
        recording.finish("exit")
    timeline = api.read(tmp_path)
    notes = timeline.diagnostics.filter(code="spans.discarded").sort("rank")
    assert notes["rank"].to_list() == [0, 1, 2, 3]
    whole = sum(len(step) for step in TRAINING[0][:90])
    stored = timeline.spans.group_by("rank").len().sort("rank")["len"]
    marks = timeline.steps.group_by("rank").len().sort("rank")["len"]
    assert (stored + marks + notes["count"]).to_list() == [whole] * RANKS
    assert set(notes["message"]) == {
        "the oldest spans of this process were discarded to keep the last 30 steps"
    }
    assert set(timeline.diagnostics["severity"]) <= {"warning", "info"}
    report = api.analyze(timeline)
    whole_from = max(whole_steps(tmp_path, rank)[0] for rank in range(RANKS))
    assert report.steps.filter("in_totals")["step"].min() == whole_from
    assert "steps.incomplete" in {note.code for note in report.diagnostics}


def test_a_hang_or_a_pause_discards_nothing(tmp_path, clock):
    recordings = recordings_of(tmp_path, seconds=30)
    list(train(recordings, clock, 30))
    before = whole_steps(tmp_path, 0)
    for _ in range(100):
        clock[0] += 600
        for recording in recordings:
            recording.write_anchor_if_due()
            recording.write_state({"step": 30})
    assert whole_steps(tmp_path, 0) == before == list(range(30))
    list(train(recordings, clock, 31, first=30))
    assert whole_steps(tmp_path, 0)[-20:] == list(range(11, 31))


def test_files_that_disappear_while_they_are_read_are_discarded_spans(tmp_path, clock, monkeypatch):
    recordings = recordings_of(tmp_path, steps=30)
    list(train(recordings, clock, 50))
    ahead = train(recordings, clock, 100, first=50)
    read, reads = reader._bytes_of, []

    def read_and_go_on(path):
        """Let the training go on, so that files that were found are deleted before they are read."""
        reads.append(path)
        if len(reads) in {2, 5}:
            for _ in range(12):
                next(ahead)
        return read(path)

    monkeypatch.setattr(reader, "_bytes_of", read_and_go_on)
    timeline = api.read(tmp_path)
    assert "error" not in timeline.diagnostics["severity"].to_list()
    assert timeline.diagnostics.filter(code="spans.discarded").height == RANKS
    for _, spans in timeline.spans.group_by("rank"):
        counts = spans.group_by("step").len().sort("step")
        assert (counts["len"][1:-1] == 2 * MICROBATCHES).all()
        assert (counts["step"].diff().drop_nulls() == 1).all()


def test_a_recording_that_is_deleted_as_a_whole_is_an_error(tmp_path, clock, monkeypatch):
    recordings = recordings_of(tmp_path)
    list(train(recordings, clock, 3))
    read = reader._bytes_of

    def read_others(path):
        if path.name.startswith("rank-00002"):
            path.unlink()
        return read(path)

    monkeypatch.setattr(reader, "_bytes_of", read_others)
    timeline = api.read(tmp_path)
    assert set(timeline.spans["rank"]) == {0, 1, 3}
    lost = timeline.diagnostics.filter(code="file.unreadable")
    assert lost["message"].to_list() == ["not read: the file was deleted while the recordings were read"]


def test_a_follower_that_falls_behind_measures_no_step_from_a_part_of_its_spans(tmp_path, clock):
    recordings = recordings_of(tmp_path, steps=12)
    follower = Follower([tmp_path])
    for step in train(recordings, clock, 100):
        if step % 40 != 20:
            continue
        follower.read()
        spans = follower.timeline().spans
        first, last = follower.first_step, follower.complete_step()
        assert last == step - 1
        inside = spans.filter(spans["step"].is_between(first, last)).group_by("step").len()
        assert set(inside["len"]) == {2 * MICROBATCHES * RANKS}
        assert inside.height == last - first + 1 >= 12


def test_the_state_of_a_process_survives_a_new_file(tmp_path, clock):
    recordings = recordings_of(tmp_path, steps=12)
    list(train(recordings, clock, 20))
    for recording in recordings:
        recording.write_state({"step": 20, "control": {"request": "abc"}, "groups": {"g": 3}})
        recording._segments.end(recording._file)
        recording._file = None
        recording.write_spans(b"".join(TRAINING[0][20]))
    states = api.find_hang(tmp_path).states
    assert [state.request for state in states] == [{"request": "abc"}] * RANKS
    assert all(state.steps_per_s > 0 and state.step == 20 for state in states)


SCRIPT = """
import gc
from stagescope import record
gc.disable()
record.start(rank=0)
for step in range(40):
    with record.step():
        for microbatch in range(1000):
            with record.span("forward", microbatch=microbatch, stage=0):
                pass
    from stagescope.record import session
    session.recorder.flush()
record.stop()
"""


@pytest.mark.parametrize("way", ["option", "environment", "variable of the process"])
def test_a_command_keeps_its_bounds_and_prints_what_it_discarded(tmp_path, way):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    variables = {"STAGESCOPE_KEEP": "1MiB"}
    if way != "variable of the process":
        options = ["--keep", "1MiB"] if way == "option" else []
        run = [sys.executable, "-m", "stagescope", "run", *options, "-o", str(tmp_path / "out"), "--"]
        command, variables = run + command, {} if way == "option" else variables
    else:
        variables["STAGESCOPE_RECORD"] = str(tmp_path / "out")
    done = subprocess.run(
        command, env=clean_environment(**variables), capture_output=True, text=True, check=True, timeout=60
    )
    files = list((tmp_path / "out").rglob("*.sscope"))
    assert sum(file.stat().st_size for file in files) <= MIN_MAX_BYTES
    timeline = api.read(tmp_path / "out")
    [count] = timeline.diagnostics.filter(code="spans.discarded")["count"]
    assert timeline.spans.height + timeline.steps.height + count == 40 * 1001
    if way != "variable of the process":
        assert f"discarded the oldest {count} spans" in done.stderr


def test_the_keyword_takes_precedence_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(session.KEEP_VARIABLE, "30m")
    session.start(tmp_path, keep="7steps")
    assert session.recorder._bounds == (DEFAULT_MAX_BYTES, Retention(0, 7))
    session.stop()
    session.start(tmp_path)
    assert session.recorder._bounds == (DEFAULT_MAX_BYTES, Retention(1800))
    session.stop()
