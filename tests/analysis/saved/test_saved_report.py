"""A saved report is the report: the same tables, sentences and JSON, without reading a span again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from polars.testing import assert_frame_equal

from explained_runs import schedule_run
from places import DATA
from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.saved import SavedParts, facts_json, parse_facts, restore_report, saved_tables
from stagescope.api import read, report_json
from stagescope.model import Timeline, empty_timeline
from stagescope.model.lazy import lazily
from stagescope.reports.markdown import report_markdown
from stagescope.reports.text import report_text

RUNS = {
    "recordings": lambda: read(DATA / "recordings" / "v1"),
    "replicas": lambda: read(DATA / "public_runs" / "bytedance-ST.parquet"),
    "megascan": lambda: read(DATA / "public_runs" / "megascan-dpp.parquet"),
    "slow stage": lambda: schedule_run(slower={2: 1.5}),
    "nothing": empty_timeline,
}


def restored(report):
    """Return a report and the same one after it was saved, with the tables that were loaded so far."""
    tables = dict(saved_tables(report))
    loaded: list[str] = []

    def load(name):
        loaded.append(name)
        return tables[name]

    def no_spans():
        raise AssertionError("the spans were read")

    small = {name: getattr(report.timeline, name) for name in ("ranks", "clocks", "diagnostics", "alignment")}
    later = dict.fromkeys(("spans", "steps", "counters", "kernels"), no_spans)
    timeline = lazily(Timeline, small, later)
    return restore_report(SavedParts(parse_facts(facts_json(report)), load, timeline)), loaded


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_report_is_the_same(name):
    report = build_explained_report(RUNS[name]())
    found, _ = restored(report)
    assert json.dumps(report_json(found)) == json.dumps(report_json(report))
    assert report_text(found) == report_text(report)
    assert report_markdown(found) == report_markdown(report)
    assert repr(found) == repr(report)
    assert found.throughput == report.throughput
    for (table, rows), (again, others) in zip(saved_tables(report), saved_tables(found), strict=True):
        assert table == again
        assert_frame_equal(rows, others)


def test_all_definitions_of_the_bubble_are_saved():
    report = build_explained_report(RUNS["megascan"]())
    found, _ = restored(report)
    for name, bubble in report.bubble.definitions.items():
        other = replace(found, bubble=found.bubble.of(name))
        assert other.bubble == bubble
        assert other.bubble.of("window") == report.bubble
        assert_frame_equal(other.losses, report.losses)
    with pytest.raises(KeyError):
        found.bubble.of("unknown")


def test_tables_are_loaded_when_they_are_used():
    found, loaded = restored(build_explained_report(RUNS["replicas"]()))
    assert set(loaded) <= {"steps", "ranks", "explanation.outlier_pattern"}
    assert found.explanation.critical_path.height
    assert found.explanation.critical_path.height
    assert loaded.count("explanation.critical_path") == 1


def test_what_was_not_saved_is_computed_from_the_spans():
    report = build_explained_report(RUNS["replicas"]())
    tables = dict(saved_tables(report))
    facts = parse_facts(facts_json(report))
    found = restore_report(SavedParts(facts, tables.__getitem__, report.timeline))
    for name in ("critical_path", "slack", "idle", "collectives"):
        assert_frame_equal(getattr(found, name), getattr(report, name))
    ledger = found.explanation.ledger
    assert (ledger.classes.length_of_action == report.explanation.ledger.classes.length_of_action).all()


def test_a_report_without_explanation_is_not_saved():
    report = build_report(schedule_run())
    with pytest.raises(TypeError, match="without explanation"):
        facts_json(report)
    with pytest.raises(TypeError, match="without explanation"):
        next(saved_tables(report))


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.update(bubbles={}),
        lambda facts: facts["explanation"].update(diagnostics_of={}),
        lambda facts: facts.update(verdict=5),
        lambda facts: facts["explanation"].update(clock_notes={"x": "y"}),
        lambda facts: facts.pop("schedule"),
    ],
)
def test_other_facts_are_refused(change):
    facts = json.loads(facts_json(build_explained_report(schedule_run())))
    change(facts)
    with pytest.raises(ValueError, match=r"."):
        parse_facts(json.dumps(facts).encode())


def test_deep_nesting_is_refused():
    with pytest.raises(ValueError, match=r"."):
        parse_facts(b"[" * 100_000)


def test_a_field_that_is_neither_known_nor_loaded_is_a_mistake():
    with pytest.raises(TypeError, match="fields of Timeline"):
        lazily(Timeline, {}, {})
