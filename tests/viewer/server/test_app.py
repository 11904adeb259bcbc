"""What the server answers, asked over a real socket."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import polars as pl
import pytest

from column_blobs import read_blob
from drawing import timeline_from_text
from running_server import assets_in, resting, run_of, serving
from stagescope.analysis.statistics.comparison import compare_totals, gather_run
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.run_data import data_without_spans, shown_ranks, viewer_data
from stagescope.viewer.server import app
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles.compared import save_comparison, with_comparison
from stagescope.viewer.tiles.levels import TooManyError
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    run = run_of(TIMELINE, folder / "run", gather_extras(TIMELINE))
    with serving(resting(run), assets_in(folder / "assets")) as visitor:
        yield visitor.enter()


def test_the_door_leads_to_the_page_of_the_newest_version(known):
    assert known.ask("/")[1]["location"] == "/run/run/"
    status, headers, body = known.ask("/run/run/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'<script src="/viewer.js"></script>' in body
    assert known.ask("/run/of-before/")[1]["location"] == "/run/run/"


def test_page_refers_to_its_script_and_style_and_nothing_else(known):
    assert known.ask("/viewer.js")[2] == b"// the script"
    assert known.ask("/viewer.css")[2] == b"/* the style */"
    body = known.ask("/run/run/")[2]
    assert b"<style" not in body
    assert body.count(b"<script") == 1
    assert b"http" not in body


def test_meta_equals_that_of_a_page_plus_the_tiling(known):
    meta, page = known.json("meta"), viewer_data(TIMELINE, gather_extras(TIMELINE)).meta
    own = {"levels", "tile_bins", "tile_rows", "version", "sections"}
    assert {key: value for key, value in meta.items() if key not in own} == {
        key: value for key, value in page.items() if key not in own
    }
    assert sorted([*meta["sections"], "links"]) == sorted(page["sections"])
    assert meta["version"] == "run"
    widths = [level["bin_ns"] for level in meta["levels"]]
    assert widths == sorted(widths)
    assert all(wide == 2 * narrow for narrow, wide in pairwise(widths))


def test_sections_equal_those_of_a_page_except_for_the_encoding_of_idle_intervals(known):
    spans = viewer_spans(TIMELINE.spans, shown_ranks(TIMELINE))
    page = data_without_spans(TIMELINE, spans, gather_extras(TIMELINE))
    assert {"heat", "slack", "idle", "critical_path", "ideal", "ledger"} <= set(
        known.json("meta")["sections"]
    )
    for name, blob in page.tables.items():
        if name != "spans":
            status, body = known.api("section", name=name)
            assert (status, read_blob(body)) == (200, read_blob(blob))
    for name, value in page.objects.items():
        assert known.json("section", name=name) == value


def test_the_spans_are_those_of_a_page_number_for_number(known):
    page_columns, page_facts = read_blob(viewer_data(TIMELINE).tables["spans"])
    end = known.json("meta")["end"]
    columns, facts = read_blob(known.api("tile", level=0, start=0, end=end + 1, rows="0-4")[1])
    assert facts["first"] == page_facts["first"] == 0
    assert page_facts["origin"] == facts["origin"] == 0
    for name in columns:
        base = page_columns["start"][0] if name == "start" else 0
        assert [value - base if base else value for value in page_columns[name]] == columns[name], name
    absent = set(page_columns) - set(columns)
    assert all(value is None for name in absent for value in page_columns[name])


def test_details_of_every_span_are_those_of_the_table(known):
    rows = viewer_spans(TIMELINE.spans, [0, 1, 2, 3])
    base = int(known.json("meta")["base_ns"])
    rows = rows.drop("source_row").with_columns(pl.col("start") - base).with_row_index("id")
    for number in (0, 17, rows.height - 1):
        assert known.json("details", id=number) == rows.row(number, named=True)


NOTHING_THERE = {
    "error": "no span or section with this number or name",
    "translations": {"zh": {"no span or section with this number or name": "没有该编号或名称的 span 或部分"}},
}


def test_invalid_requests_get_a_status_and_an_error(known):
    count = TIMELINE.spans.height
    status, body = known.api("details", id=count)
    assert (status, json.loads(body)) == (404, NOTHING_THERE)
    assert known.api("section", name="nothing")[0] == 404
    assert known.api("details", id="x")[0] == 400
    assert known.api("details")[0] == 400
    assert known.api("tile", level=99, start=0, end=5, rows="0")[0] == 400
    assert known.api("tile", level=0, start=5, end=5, rows="0")[0] == 400
    assert known.api("tile", level=0, start=0, end=5, rows="0-5")[0] == 400
    status, body = known.api("search", q="nonsense:3", limit=5)
    assert status == 400
    assert json.loads(body)["error"].startswith('Unknown field "nonsense". Fields: kind, stage, mb')
    assert known.api("search", q="x" * 1001, limit=5)[0] == 400
    assert known.api("search", q="F0", limit=10**7)[0] == 400
    assert known.api("nothing")[0] == 404


def test_ten_thousand_rows_can_be_asked_for_one_by_one(tmp_path):
    rows = pl.DataFrame({"rank": range(10_000)}, schema={"rank": pl.Int32})
    timeline = timeline_from_text("F0 B0")
    ranks = pl.concat([timeline.ranks.head(0), rows], how="diagonal_relaxed").select(timeline.ranks.columns)
    run = run_of(replace(timeline, ranks=ranks.cast(dict(timeline.ranks.schema))), tmp_path / "wide")
    with serving(resting(run), assets_in(tmp_path / "assets")) as visitor:
        found = visitor.enter().json("select", start=0, end=2000, rows=",".join(map(str, range(10_000))))
    assert (found["row_count"], found["busy_ns"]) == (10_000, 2000)


def test_a_version_that_was_never_shown_has_no_data(known):
    status, _, body = known.ask("/run/other/api/meta")
    assert (status, json.loads(body)["error"]) == (
        410,
        "the run has changed since this page was opened; reload it",
    )


def test_a_part_with_too_much_in_it_is_too_large(known, monkeypatch):
    def refuse(*_):
        raise TooManyError

    monkeypatch.setattr(app, "tile_blob", refuse)
    assert known.api("tile", level=0, start=0, end=5, rows="0")[0] == 413


def test_a_mistake_in_the_server_shows_nothing_of_it(known, monkeypatch):
    def fail(*_):
        raise RuntimeError("the words of a traceback")

    monkeypatch.setattr(app, "tile_blob", fail)
    status, body = known.api("tile", level=0, start=0, end=5, rows="0")
    assert (status, body) == (500, b"Internal Server Error")
    monkeypatch.undo()
    assert known.api("tile", level=0, start=0, end=5, rows="0")[0] == 200


def test_long_search_does_not_delay_tiles(known, monkeypatch):
    began, may_end = threading.Event(), threading.Event()

    def search(*_):
        began.set()
        assert may_end.wait(30)
        return {"count": 0}

    monkeypatch.setattr(app, "search_spans", search)
    with ThreadPoolExecutor() as pool:
        searching = [pool.submit(known.api, "search", q="F0", limit=1) for _ in range(5)]
        assert began.wait(30)
        assert known.api("tile", level=0, start=0, end=5, rows="0")[0] == 200
        assert known.json("version") == {"version": "run", "problem": None}
        assert not any(one.done() for one in searching)
        may_end.set()
        assert [one.result()[0] for one in searching] == [200] * 5


def test_hostile_names_arrive_as_they_are(tmp_path):
    name = "</script><img onerror=alert(1)>\0\u202e\u2028" + "x" * 10_000
    timeline = timeline_from_text("F0 B0")
    named = timeline.with_spans(timeline.spans.with_columns(name=pl.lit(name)))
    run = run_of(named, tmp_path / "run")
    with serving(resting(run), assets_in(tmp_path / "assets")) as visitor:
        visitor.enter()
        assert visitor.json("details", id=0)["name"] == name
        assert visitor.json("search", q="onerror", limit=10)["count"] == 2
        columns, _ = read_blob(visitor.api("tile", level=0, start=0, end=5000, rows="0")[1])
        assert columns["name"] == [name, name]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return a server of the run compared with another one of three ranks, and that run."""
    folder = tmp_path_factory.mktemp("compared")
    before = pipeline_timeline(Shape(ranks=3, microbatches=8, steps=2))
    (folder / "before").mkdir()
    save_comparison(compare_totals(gather_run(before), gather_run(TIMELINE)), before, folder / "before")
    run = with_comparison(run_of(TIMELINE, folder / "run", gather_extras(TIMELINE)), folder / "before")
    with serving(resting(run), assets_in(folder / "assets")) as visitor:
        yield visitor.enter(), before


def test_all_spans_are_those_of_a_page_number_for_number(known):
    page_columns, _ = read_blob(viewer_data(TIMELINE).tables["spans"])
    columns, facts = read_blob(known.api("spans")[1])
    assert facts["first"] == 0
    assert columns["start"] == from_base(page_columns["start"])
    for name in ("row", "kind", "lane", "duration", "step", "stage", "microbatch"):
        assert columns[name] == page_columns[name], name
    step = known.json("meta")["steps"][1]
    of_step, _ = read_blob(known.api("spans", start=step["start"], end=step["end"])[1])
    assert set(of_step["step"]) >= {step["step"]}
    assert 0 < len(of_step["row"]) < len(columns["row"])


def test_the_other_run_of_a_comparison_is_served_beside_it(compared):
    visitor, before = compared
    assert visitor.json("meta")["title"] == viewer_data(TIMELINE).meta["title"]
    assert "comparison" in visitor.json("meta")["sections"]
    assert visitor.json("section", name="comparison")["sentences"]
    assert visitor.json("other/meta")["title"] == viewer_data(before).meta["title"]
    columns, _ = read_blob(visitor.api("other/spans")[1])
    page_columns, _ = read_blob(viewer_data(before).tables["spans"])
    assert columns["row"] == page_columns["row"]
    assert columns["start"] == from_base(page_columns["start"])


def from_base(starts):
    return [start - min(starts) for start in starts]


def test_a_run_that_is_compared_with_none_has_no_other_run(known):
    for what in ("other/meta", "other/spans"):
        status, body = known.api(what)
        assert (status, json.loads(body)) == (404, NOTHING_THERE)


def test_the_other_run_is_refused_to_strangers(compared):
    visitor, _ = compared
    for what in ("other/meta", "other/spans", "spans"):
        path = f"/run/{visitor.version}/api/{what}"
        assert replace(visitor, cookie="").ask(path)[0] == 403
        assert visitor.ask(path, Origin="http://example.org")[0] == 403
        assert visitor.ask(path, Sec_Fetch_Site="cross-site")[0] == 403


def test_too_many_spans_at_once_are_refused_in_a_sentence(known, monkeypatch):
    monkeypatch.setattr(app, "MOST_COMPARED", 10)
    status, body = known.api("spans")
    assert (status, json.loads(body)["error"]) == (413, "this part of the run is too large for one response")
    assert known.api("spans", start="x", end=3)[0] == 400
