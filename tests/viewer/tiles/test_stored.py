"""A large stored run, shown a file at a time, against the same run as a timeline."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from column_blobs import read_blob
from places import DATA
from stagescope.api import read, save_report, store, view_run
from stagescope.exporters.stored_run import partitions
from stagescope.model import large_tables
from stagescope.model.stored_run import MANIFEST
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.tiles import stored, stored_survey
from stagescope.viewer.tiles.levels import Part
from stagescope.viewer.tiles.records import LANE_COUNT
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline
from stagescope.vocabulary.errors import InputError

SOURCES = {
    "replicas": DATA / "public_runs" / "bytedance-ST.parquet",
    "one pipeline": DATA / "public_runs" / "primus-pp8.parquet",
    "one step": DATA / "recordings" / "v1",
}


@pytest.fixture(scope="module", params=SOURCES)
def run(request, tmp_path_factory):
    """Return the directory of a stored run whose files have few steps each, with its report."""
    place = tmp_path_factory.mktemp("stored") / "run.stagescope"
    patch = pytest.MonkeyPatch()
    patch.setattr(partitions, "MOST_SPANS", 2000)
    patch.setattr(partitions.step_ranges, "__defaults__", (2000,))
    patch.setattr(partitions.divide, "__defaults__", (2000,))
    store(SOURCES[request.param], out=place)
    patch.undo()
    save_report(place)
    return place


@pytest.fixture
def views(run, tmp_path, monkeypatch):
    """Return the views of a run that is shown a file at a time, and of its timeline."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stored, "LARGE", 100)
    monkeypatch.setattr(stored, "MOST_AT_ONCE", 1500)
    folder = tmp_path / "whole"
    folder.mkdir()
    timeline = read(run)
    save_timeline(timeline, folder, gather_extras(timeline))
    return view_run(run), open_run(folder)


def spans_of(view):
    every = Part(
        0, view.levels.shape.end + 1, pl.int_range(view.levels.shape.row_count, eager=True).to_numpy()
    )
    found = view.levels.spans_in(every)
    ranks = pl.Series("rank", view.meta["ranks"]["rank"])
    records = pl.DataFrame({name: found.records[name] for name in found.records.dtype.names})
    rows = pl.Series(found.track // LANE_COUNT)
    return records.with_columns(rank=ranks.gather(rows)).sort("rank", "lane", "start", "kind", "microbatch")


def test_it_has_the_spans_of_the_run(views):
    assert_frame_equal(*map(spans_of, views))


def test_it_has_the_steps_with_bubbles_and_outliers_of_the_run(views):
    assert views[0].meta["steps"] == views[1].meta["steps"]


def test_meta_is_that_of_the_run(views):
    large, whole = (dict(view.meta) for view in views)
    for name in ("base_ns", "end", "span_count", "kinds", "time_unit", "title", "clocks"):
        assert large[name] == whole[name], name
    ranks = [pl.DataFrame(each["ranks"]).sort("rank") for each in (large, whole)]
    assert_frame_equal(*ranks)
    codes = [{one["code"] for one in each["diagnostics"]} for each in (large, whole)]
    assert codes[0] == codes[1] | {"viewer.layers_omitted"}


def test_heat_messages_verdict_and_account_are_those_of_the_run(views):
    large, whole = views
    for name in ("heat", "transfers", "rank_heat"):
        assert (name in large.sections) == (name in whole.sections)
        if name in large.sections:
            tables = [pl.DataFrame(read_blob(view.sections[name].data)[0]) for view in views]
            if name == "rank_heat":
                tables = [by_rank(table, view) for table, view in zip(tables, views, strict=True)]
            assert_frame_equal(*tables, check_row_order=True)
    ledgers = [json.loads(view.sections["ledger"].data) for view in views]
    assert ledgers[0] == ledgers[1]
    verdicts = [json.loads(view.sections["verdict"].data) for view in views]
    for verdict in verdicts:
        for finding in verdict["findings"]:
            finding["span"] = None
    assert verdicts[0] == verdicts[1]


def test_many_ranks_and_steps_are_summed_while_they_are_read(views, run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(large_tables, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(stored_survey, "MOST_CELLS", 3)
    again = view_run(run)
    assert again.meta["steps"] == views[0].meta["steps"]
    assert again.meta["ranks"] == views[0].meta["ranks"]
    assert set(views[0].sections) - set(again.sections) == {"rank_heat"}
    for name in {"heat", "transfers"}.intersection(again.sections):
        assert again.sections[name] == views[0].sections[name]


def by_rank(table, view):
    """Return a table with ranks instead of rows, which the large run has in another order."""
    ranks = pl.Series(view.meta["ranks"]["rank"])
    return table.with_columns(row=ranks.gather(table["row"])).sort("row", "step")


def test_rows_of_a_pipeline_are_together(views):
    pipelines = [number for number in views[0].meta["ranks"]["pipeline"] if number is not None]
    assert pipelines == sorted(pipelines)


def test_a_damaged_file_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "LARGE", 100)
    copy = tmp_path / "copy.stagescope"
    for path in run.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(run)).write_bytes(path.read_bytes())
    part = next(copy.glob("spans/**/part.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    assert (copy / MANIFEST).exists()
    with pytest.raises(InputError, match=r"part\.parquet has changed since it was stored"):
        view_run(copy)


def test_each_file_is_surveyed_with_its_neighbors(monkeypatch):
    monkeypatch.setattr(stored_survey, "read_part", lambda _, part: part)
    found = list(stored_survey._with_neighbors(None, ("a", "b", "c")))
    assert found == [("a", "a", ["b"]), ("b", "b", ["a", "c"]), ("c", "c", ["b"])]
    assert list(stored_survey._with_neighbors(None, ("a",))) == [("a", "a", [])]
