"""Our traces in the programs that open them: every slice, flow, duration and track is present."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from typing import NamedTuple

import polars as pl
import pytest

from consumers import open_browser, query_trace
from places import DATA
from stagescope.api import write
from stagescope.exporters.inflight import COUNTER_NAME
from stagescope.exporters.tracks import lay_out
from stagescope.ingest.recording.reader import read_recordings
from synthetic import Shape, awkward_timeline, message_count, pipeline_timeline

pytestmark = pytest.mark.slow

PROBLEMS_SQL = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
NATIVE_SLICES_SQL = (
    "select parent.name, track.name, slice.name, slice.ts, slice.dur from slice"
    " join track on track.id = slice.track_id left join track parent on parent.id = track.parent_id"
)
JSON_SLICES_SQL = (
    "select process.name, thread.name, slice.name, slice.ts, slice.dur from slice"
    " join thread_track on thread_track.id = slice.track_id join thread using (utid) join process using (upid)"
)
FLOWS_SQL = (
    "select s.name, s.ts, s.track_id, r.name, r.ts, r.track_id from flow"
    " join slice s on s.id = slice_out join slice r on r.id = slice_in"
)
COUNTERS_SQL = (
    "select t.name, value from counter join counter_track t on t.id = track_id order by t.name, value"
)
ARGUMENTS_SQL = (
    "select key, display_value from slice join args using (arg_set_id)"
    " where name = 'recv forward 1' and dur = 60001"
)
SLICES_SQL = {".pftrace": NATIVE_SLICES_SQL, ".json": JSON_SLICES_SQL}
COUNT = "async sql => (await window.app.trace.engine.query(sql)).iter({n: 0}).n"
TITLES = """async sql => {
    const rows = await window.app.trace.engine.query(sql), titles = [];
    for (const row = rows.iter({title: 'str'}); row.valid(); row.next()) titles.push(row.title);
    return titles;
}"""
SAMPLES = {
    "pipeline at today's epoch": pipeline_timeline(Shape()),
    "pipeline from zero": pipeline_timeline(Shape(ranks=2, origin_ns=0)),
    "awkward": awkward_timeline(),
    "recorded": read_recordings(sorted((DATA / "recordings/v1").iterdir())),
}


class Queried(NamedTuple):
    """Rows that trace_processor returns for one file."""

    problems: list
    slices: list
    flows: list
    counters: list
    arguments: list


class Shown(NamedTuple):
    """What the Perfetto UI shows of one file; the tracks are `group / track`, from top to bottom."""

    slice_count: int
    flow_count: int
    problem_count: int
    titles: set
    tracks: list


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(params=SAMPLES)
def sample(request):
    return request.param


@pytest.fixture
def timeline(sample):
    return SAMPLES[sample]


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    """Return a function that writes a sample to a file, the first time only."""

    @functools.cache
    def write_sample(sample, suffix):
        return write(SAMPLES[sample], tmp_path_factory.mktemp("traces") / f"trace{suffix}")

    return write_sample


@pytest.fixture(scope="module")
def queried(written_once):
    """Return a function that loads a file into trace_processor once, for all tests."""

    @functools.cache
    def query(sample, suffix):
        sql = [PROBLEMS_SQL, SLICES_SQL[suffix], FLOWS_SQL, COUNTERS_SQL, ARGUMENTS_SQL]
        return Queried(*query_trace(written_once(sample, suffix).path, *sql))

    return query


@pytest.fixture(scope="module")
def shown(browser, written_once):
    """Return a function that opens a file in the Perfetto UI once, for all tests."""

    @functools.cache
    def show(sample, suffix):
        page = browser.perfetto(written_once(sample, suffix).path)
        return Shown(
            page.evaluate(COUNT, "select count(*) as n from slice"),
            page.evaluate(COUNT, "select count(*) as n from flow"),
            page.evaluate(COUNT, PROBLEMS_SQL.replace("name, value", "count(*) as n")),
            set(page.evaluate(TITLES, "select distinct name as title from slice")),
            shown_tracks(page),
        )

    return show


def expected_slices(timeline, *, rebased, run_name):
    """Return every slice as (group, track, title, start, duration), counted."""
    layout = lay_out(timeline)
    groups = {group.rank: group.name for group in layout.groups} | {None: run_name}
    origin_ns = layout.start_ns if rebased else 0
    rows = layout.slices.select("track", "title", "start_ns", "end_ns").iter_rows()
    return Counter(
        (groups[layout.tracks[track].rank], layout.tracks[track].name, title, start - origin_ns, end - start)
        for track, title, start, end in rows
    )


def expected_flows(timeline, *, rebased):
    """Return every flow as (title and start of the send, title and start of the receive), counted."""
    layout = lay_out(timeline)
    origin_ns = layout.start_ns if rebased else 0
    ends = layout.slices.select("title", pl.col("start_ns") - origin_ns)
    sends, receives = (ends[layout.flows[side]].rows() for side in ("send", "recv"))
    return Counter(send + receive for send, receive in zip(sends, receives, strict=True))


def counter_name(track, suffix):
    """Return the name that viewers give a counter: in JSON, that of its series follows."""
    is_computed = track.name == COUNTER_NAME
    return f"{track.name} {track.unit or 'value'}" if suffix == ".json" and not is_computed else track.name


def expected_counters(timeline, suffix):
    """Return name and value of every value of a counter."""
    layout = lay_out(timeline)
    rows = layout.counters.select("track", "value").iter_rows()
    return [(counter_name(layout.tracks[track], suffix), value) for track, value in rows]


def as_numbers(rows):
    """Return slices with their times as numbers: the driver prints 64-bit integers as text."""
    return [(*row[:3], int(row[3]), int(row[4])) for row in rows]


@pytest.mark.parametrize("suffix", SLICES_SQL)
def test_trace_processor_sees_every_slice_and_flow_as_written(
    sample, timeline, written_once, queried, suffix
):
    written, found = written_once(sample, suffix), queried(sample, suffix)
    assert found.problems == []
    slices = Counter(as_numbers(found.slices))
    assert slices == expected_slices(timeline, rebased=suffix == ".json", run_name="run")
    assert slices.total() == written.slice_count
    assert len(found.flows) == written.flow_count
    flows = Counter((out, int(out_ns), into, int(in_ns)) for out, out_ns, _, into, in_ns, _ in found.flows)
    assert flows == expected_flows(timeline, rebased=suffix == ".json")
    values = [(name, float(value)) for name, value in found.counters]
    assert values == sorted(expected_counters(timeline, suffix))


def test_flow_count_is_the_number_of_messages_sent(tmp_path):
    shape = Shape(ranks=3, microbatches=5)
    written = write(pipeline_timeline(shape), tmp_path / "trace.pftrace")
    assert written.flow_count == message_count(shape)


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        (".pftrace", {"debug.stage": "5"}),  # a receive, whose title has the micro-batch
        (".json", {"args.label": "r5.1", "args.bytes": str(2**53 + 1), "args.microbatch": "1"}),
    ],
)
def test_trace_processor_reads_the_arguments_of_a_slice(queried, suffix, expected):
    assert expected.items() <= dict(queried("awkward", suffix).arguments).items()


@pytest.mark.parametrize("suffix", SLICES_SQL)
def test_perfetto_ui_shows_every_slice_and_flow(sample, timeline, written_once, shown, suffix):
    written, found = written_once(sample, suffix), shown(sample, suffix)
    assert found.slice_count == written.slice_count
    assert found.flow_count == written.flow_count
    assert found.problem_count == 0
    # This version of the UI (not the trace_processor above) shows JSON's escapes as they are written.
    readable = {
        title for title in lay_out(timeline).slices["title"] if suffix == ".pftrace" or is_plain(title)
    }
    assert readable <= found.titles
    assert len(found.titles) == lay_out(timeline).slices["title"].n_unique()


def is_plain(title):
    return "\\" not in json.dumps(title, ensure_ascii=False).replace('\\"', "")


def test_perfetto_ui_shows_a_pftrace_in_our_order(sample, timeline, written_once, shown):
    written = written_once(sample, ".pftrace")
    tracks = [name.removeprefix("run / ") for name in shown(sample, ".pftrace").tracks]
    groups = [group.name for group in lay_out(timeline).groups]
    with_tracks = [
        name for name in groups if any(track.startswith(f"{name} /") for track in written.track_names)
    ]
    assert [name for name in tracks if name in written.track_names] == list(written.track_names)
    assert [name for name in tracks if name in groups] == with_tracks


def test_perfetto_ui_shows_every_track_of_a_json(sample, timeline, written_once, shown):
    # The UI appends process and thread ids to the names, but for the counters'.
    tracks = shown(sample, ".json").tracks
    found = Counter(re.sub(r" \d+(?= / )", "", name).removeprefix("run / ") for name in tracks)
    layout = lay_out(timeline)
    names = dict(zip(layout.track_names, layout.tracks, strict=True))
    for track_name in written_once(sample, ".json").track_names:
        track = names[track_name]
        name = (
            track_name.removesuffix(track.name) + counter_name(track, ".json")
            if track.is_counter
            else track_name
        )
        own = [other for other in found if other == name or re.fullmatch(re.escape(name) + r" \d+", other)]
        assert len(own) == 1, f"{name} is shown as {own}"


def shown_tracks(page):
    """Return the tracks of the page from top to bottom as ``group / track``, once no more are being added."""
    page.wait_for_function(
        """() => {
            const trace = window.app.trace, count = trace.workspace.flatTracks.length;
            const isSame = count > 0 && count === window.lastCount && trace === window.lastTrace;
            window.calm = isSame ? window.calm + 1 : 0;
            [window.lastCount, window.lastTrace] = [count, trace];
            return window.calm >= 5;
        }""",
        polling=200,
    )
    return page.evaluate(
        """() => {
            const walk = track => [track.fullPath.join(' / '), ...track.children.flatMap(walk)];
            return window.app.trace.workspace.children.flatMap(walk);
        }"""
    )


def test_catapult_shows_every_slice_flow_and_track(browser, sample, timeline, written_once):
    written = written_once(sample, ".json")
    page = browser.catapult(written.path)
    slices = page.evaluate(
        """() => [...window.model.getDescendantEvents()].filter(event => event instanceof tr.model.ThreadSlice)
            .map(event => [event.parentContainer.parent.name, event.parentContainer.name, event.title,
                           Math.round(event.start * 1e6), Math.round(event.duration * 1e6)])"""
    )
    flows = page.evaluate(
        """() => window.model.flowEvents.map(flow => [flow.startSlice.title, Math.round(flow.startSlice.start * 1e6),
                                                      flow.endSlice.title, Math.round(flow.endSlice.start * 1e6)])"""
    )
    warnings = page.evaluate("() => window.model.importWarnings.map(warning => warning.message)")
    assert warnings == []
    assert Counter(map(tuple, slices)) == expected_slices(timeline, rebased=True, run_name="run")
    assert Counter(map(tuple, flows)) == expected_flows(timeline, rebased=True)
    assert len(slices) == written.slice_count
