import numpy as np
import pytest

from recordings import encode, recording_frames, span_record, step_record
from stagescope.api import read
from stagescope.ingest.recording.frames import RAW_ANCHOR_DTYPE
from stagescope.ingest.recording.slews import slew_of
from stagescope.record import format as fmt

SECOND_NS = 1_000_000_000
START_NS = 5_000 * SECOND_NS


def ahead_of_raw_ns(raw_ns, slews, base_ppm=20.0):
    """Return by how much the monotonic clock is ahead; slews are (from, to, ppm) in the time of the raw clock."""
    ahead_ns = base_ppm * 1e-6 * raw_ns
    for from_ns, to_ns, ppm in slews:
        ahead_ns = ahead_ns + ppm * 1e-6 * (np.clip(raw_ns, from_ns, to_ns) - from_ns)
    return ahead_ns


def readings(slews, *, seconds=20.0, every_s=0.5, seed=0, width_ns=200):
    """Return readings at about equal distances, and a function from the true time to the monotonic clock."""
    rng = np.random.default_rng(seed)
    count = int(seconds / every_s)
    raw_ns = (np.arange(count) + rng.uniform(-0.2, 0.2, count)) * every_s * SECOND_NS
    raw_ns[0] = 0

    def monotonic_ns(at_ns):
        at_ns = np.asarray(at_ns, float)
        return START_NS + np.rint(at_ns + ahead_of_raw_ns(at_ns, slews)).astype(np.int64)

    table = np.zeros(count, RAW_ANCHOR_DTYPE)
    table["raw_ns"] = np.rint(raw_ns)
    table["monotonic_ns"] = monotonic_ns(raw_ns) + rng.integers(-width_ns // 2, width_ns // 2, count)
    table["width_ns"] = width_ns
    return table, monotonic_ns


def worst_error_ns(slew, monotonic_ns, seconds):
    at_ns = np.linspace(0, seconds * SECOND_NS, 5_001)
    found_ns = slew.removed(monotonic_ns(at_ns)) - START_NS - at_ns
    # Any constant rate is right: what remains is the distance from the best line.
    return np.abs(found_ns - np.polyval(np.polyfit(at_ns, found_ns, 1), at_ns)).max()


@pytest.mark.parametrize(
    "slews",
    [
        [(3.3, 8.1, 500.0)],
        [(6.2, 9.05, -500.0), (12.0, 12.9, 300.0)],
        [(4.1, 5.9, 50_000.0)],
        [(4.1, 4.3, 50_000.0)],
        [(0.2, 7.0, 500.0)],
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_slew_is_removed_within_the_stated_error(slews, seed):
    in_ns = [(first * SECOND_NS, last * SECOND_NS, ppm) for first, last, ppm in slews]
    table, monotonic_ns = readings(in_ns, seed=seed)
    last_ns = int(table["raw_ns"][-1])
    slew = slew_of(table, (START_NS, int(monotonic_ns(last_ns))))
    error_ns = worst_error_ns(slew, monotonic_ns, last_ns / SECOND_NS)
    assert error_ns <= slew.error_ns + 1
    if all(last - first > 2.5 for first, last, _ in slews) and slews[0][0] > 2:
        assert (
            error_ns <= 2_000
        )  # at most one change of the rate between two readings: only their widths remain


def test_a_constant_rate_and_missing_readings_change_nothing():
    table, _ = readings([])
    assert slew_of(table, (START_NS, START_NS + 20 * SECOND_NS)) is None
    assert slew_of(table[:1], (START_NS, START_NS)) is None
    assert slew_of(table[:0], (START_NS, START_NS)) is None


def test_interrupted_readings_are_not_used():
    table, monotonic_ns = readings([(3.3e9, 8.1e9, 500.0)])
    table["monotonic_ns"][7] += 400_000
    table["width_ns"][7] = 900_000
    slew = slew_of(table, (START_NS, int(monotonic_ns(19e9))))
    assert worst_error_ns(slew, monotonic_ns, 19) <= 2_000


def test_a_clock_that_is_slewed_all_the_time_gets_the_rate_of_the_hardware():
    table, monotonic_ns = readings([(-1e9, 30e9, 600.0)])
    slew = slew_of(table, (START_NS, int(monotonic_ns(19e9))))
    at_ns = monotonic_ns(np.array([2e9, 12e9]))
    assert np.diff(slew.removed(at_ns))[0] == pytest.approx(10e9, rel=1e-7)


def test_all_times_of_a_recording_are_converted_and_the_slew_is_named(tmp_path):
    table, monotonic_ns = readings([(3e9, 9e9, 500.0)])
    ends_ns = monotonic_ns(np.arange(0, 19) * 1e9)
    spans = [
        record
        for step, (first, last) in enumerate(zip(ends_ns[:-1].tolist(), ends_ns[1:].tolist(), strict=True))
        for record in (
            span_record("forward", first, last, step=step, stage=0, microbatch=0),
            span_record("recv_forward", first, last, step=step, wait_start_ns=first, wait_end_ns=last),
            step_record(step, first, last),
        )
    ]
    for rank in range(2):  # both on one clock, one of them without readings
        frames = recording_frames(spans, rank=rank, world_size=2)
        if rank == 0:
            frames.insert(3, (fmt.RAW_CLOCK, table.tobytes()))
        (tmp_path / f"rank-{rank:05d}.sscope").write_bytes(encode(frames))
    run = read(tmp_path)
    for lengths_ns in (
        run.spans["end_ns"] - run.spans["start_ns"],
        (run.spans["wait_end_ns"] - run.spans["wait_start_ns"]).drop_nulls(),
        run.steps["end_ns"] - run.steps["start_ns"],
    ):
        assert len(lengths_ns) >= 36
        assert (lengths_ns - 1_000_020_000).abs().max() <= 1_000
    (note,) = run.diagnostics.filter(code="clock.slewed").iter_rows(named=True)
    assert "+500 ppm" in note["message"]
    assert 0 < run.clocks["rate_error_ns"].item() < 2_000


def test_readings_on_a_busy_machine_are_no_slew():
    rng = np.random.default_rng(5)
    claimed = 0
    for _ in range(400):
        count = rng.integers(2, 40)
        table = np.zeros(count, RAW_ANCHOR_DTYPE)
        table["raw_ns"] = np.sort(rng.uniform(0, 4e9, count))
        interrupted = 10 ** rng.uniform(2.8, 5, count)
        table["width_ns"] = np.where(rng.random(count) < 0.7, rng.uniform(150, 600, count), interrupted)
        table["monotonic_ns"] = START_NS + table["raw_ns"] + rng.uniform(-0.5, 0.5, count) * table["width_ns"]
        claimed += slew_of(table, (START_NS, START_NS + 4 * SECOND_NS)) is not None
    assert claimed == 0
