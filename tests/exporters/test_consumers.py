"""Our traces in the programs that open them: every slice, flow, duration and track is present."""

from __future__ import annotations

import json
import re
from collections import Counter

import polars as pl
import pytest

from consumers import open_browser, query_trace
from places import DATA
from stagescope.api import write
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
COUNTERS_SQL = "select count(*) from counter join counter_track t on t.id = track_id where t.name = '{}'"
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


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(params=SAMPLES)
def timeline(request):
    return SAMPLES[request.param]


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


def as_numbers(rows):
    """Return slices with their times as numbers: the driver prints 64-bit integers as text."""
    return [(*row[:3], int(row[3]), int(row[4])) for row in rows]


@pytest.mark.parametrize(("suffix", "sql"), [(".pftrace", NATIVE_SLICES_SQL), (".json", JSON_SLICES_SQL)])
def test_trace_processor_sees_every_slice_and_flow_as_written(timeline, tmp_path, suffix, sql):
    written = write(timeline, tmp_path / f"trace{suffix}")
    problems, slices, flows, counters = query_trace(
        written.path, PROBLEMS_SQL, sql, FLOWS_SQL, COUNTERS_SQL.format("micro-batches in flight")
    )
    assert problems == []
    found = Counter(as_numbers(slices))
    assert found == expected_slices(timeline, rebased=suffix == ".json", run_name="run")
    assert found.total() == written.slice_count
    assert len(flows) == written.flow_count
    found_flows = Counter((out, int(out_ns), into, int(in_ns)) for out, out_ns, _, into, in_ns, _ in flows)
    assert found_flows == expected_flows(timeline, rebased=suffix == ".json")
    assert [int(count) for (count,) in counters] == [lay_out(timeline).counters.height]


def test_flow_count_is_the_number_of_messages_sent(tmp_path):
    shape = Shape(ranks=3, microbatches=5)
    written = write(pipeline_timeline(shape), tmp_path / "trace.pftrace")
    assert written.flow_count == message_count(shape)


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        (".pftrace", {"debug.stage": "5", "debug.microbatch": "1"}),
        (".json", {"args.label": "r5.1", "args.bytes": str(2**53 + 1), "args.microbatch": "1"}),
    ],
)
def test_trace_processor_reads_the_arguments_of_a_slice(tmp_path, suffix, expected):
    sql = "select key, display_value from slice join args using (arg_set_id) where name = 'recv forward 1'"
    written = write(awkward_timeline(), tmp_path / f"trace{suffix}")
    (rows,) = query_trace(written.path, f"{sql} and dur = 60001")
    assert expected.items() <= dict(rows).items()


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_perfetto_ui_shows_every_slice_and_flow(browser, timeline, tmp_path, suffix):
    written = write(timeline, tmp_path / f"trace{suffix}")
    page = browser.perfetto(written.path)
    count = "async sql => (await window.app.trace.engine.query(sql)).iter({n: 0}).n"
    assert page.evaluate(count, "select count(*) as n from slice") == written.slice_count
    assert page.evaluate(count, "select count(*) as n from flow") == written.flow_count
    assert page.evaluate(count, PROBLEMS_SQL.replace("name, value", "count(*) as n")) == 0
    titles = page.evaluate(TITLES, "select distinct name as title from slice")
    page.close()
    # This version of the UI (not the trace_processor above) shows JSON's escapes as they are written.
    readable = {
        title for title in lay_out(timeline).slices["title"] if suffix == ".pftrace" or is_plain(title)
    }
    assert readable <= set(titles)
    assert len(set(titles)) == lay_out(timeline).slices["title"].n_unique()


def is_plain(title):
    return "\\" not in json.dumps(title, ensure_ascii=False).replace('\\"', "")


def test_perfetto_ui_shows_a_pftrace_in_our_order(browser, timeline, tmp_path):
    written = write(timeline, tmp_path / "trace.pftrace")
    page = browser.perfetto(written.path)
    shown = [name.removeprefix("run / ") for name in shown_tracks(page)]
    page.close()
    groups = [group.name for group in lay_out(timeline).groups]
    with_tracks = [
        name for name in groups if any(track.startswith(f"{name} /") for track in written.track_names)
    ]
    assert [name for name in shown if name in written.track_names] == list(written.track_names)
    assert [name for name in shown if name in groups] == with_tracks


def test_perfetto_ui_shows_every_track_of_a_json(browser, timeline, tmp_path):
    written = write(timeline, tmp_path / "trace.json")
    page = browser.perfetto(written.path)
    # The UI appends process and thread ids to the names, but for the counters'.
    shown = Counter(re.sub(r" \d+(?= / )", "", name).removeprefix("run / ") for name in shown_tracks(page))
    page.close()
    for name in written.track_names:
        own = [other for other in shown if other == name or re.fullmatch(re.escape(name) + r" \d+", other)]
        assert len(own) == 1, f"{name} is shown as {own}"


def shown_tracks(page):
    """Return the tracks of the page from top to bottom as ``group / track``, once no more are being added."""
    page.wait_for_function(
        """() => {
            const count = window.app.trace.workspace.flatTracks.length;
            window.calm = count > 0 && count === window.lastCount ? window.calm + 1 : 0;
            window.lastCount = count;
            return window.calm === 5;
        }""",
        polling=200,
    )
    return page.evaluate(
        """() => {
            const walk = track => [track.fullPath.join(' / '), ...track.children.flatMap(walk)];
            return window.app.trace.workspace.children.flatMap(walk);
        }"""
    )


def test_catapult_shows_every_slice_flow_and_track(browser, timeline, tmp_path):
    written = write(timeline, tmp_path / "trace.json")
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
    page.close()
    assert warnings == []
    assert Counter(map(tuple, slices)) == expected_slices(timeline, rebased=True, run_name="run")
    assert Counter(map(tuple, flows)) == expected_flows(timeline, rebased=True)
    assert len(slices) == written.slice_count
