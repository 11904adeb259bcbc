"""The table of what was understood of a mapped trace."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import stagescope
from drawing import timeline_from_text
from stagescope.analysis.understood import understood
from stagescope.cli import main
from stagescope.reports.markdown import report_markdown
from stagescope.reports.understood import understood_lines
from stagescope.viewer.analysis_data import report_extras

MAPPED = Path(__file__).parents[1] / "data" / "mapped"
MEGASCAN = MAPPED / "megascan-pp-iter10.json.gz"

EXPECTED = """\
understood as:
  ranks             4 (0-3)
  stages            16 (0-15)
  micro-batches     8 (0-7)
  steps             1 (10)
  actions per step  256
  slices            256 of 256 slices are used, by the mapping megascan, which was recognized
"""


def test_states_numbers_and_the_share_of_slices_before_any_conclusion(capsys):
    assert main(["report", str(MEGASCAN)]) == 0
    assert capsys.readouterr().out.startswith(EXPECTED)
    assert main(["show", str(MEGASCAN)]) == 0
    assert capsys.readouterr().out.startswith(EXPECTED)


def test_what_no_action_states_is_unknown_and_not_zero():
    timeline = stagescope.read(MEGASCAN, pattern="{kind}", map={"step": "args.iteration", "rank": "pid"})
    lines = understood_lines(timeline)
    assert "  micro-batches     unknown" in lines


def test_recordings_have_no_such_table():
    assert understood_lines(timeline_from_text("F0 B0")) == []


@pytest.fixture
def named(tmp_path):
    """The Timeline of a trace of 7 slices, 4 of which are named like actions."""
    trace = tmp_path / "rank0.json"
    names = ["forward_0", "load", "forward_1", "load", "backward_0", "load", "backward_1"]
    events = [{"ph": "X", "name": name, "ts": 9 * i, "dur": 5} for i, name in enumerate(names)]
    trace.write_text(json.dumps({"traceEvents": events}))
    return stagescope.read(trace, pattern="{kind}_{microbatch}")


def test_every_form_of_a_report_states_the_same(named):
    report = stagescope.analyze(named)
    printed = [" ".join(line.split()) for line in understood_lines(named)[1:]]
    assert "micro-batches 2 (0-1)" in printed
    assert [" ".join(row) for row in report_extras(report).objects["understood"]] == printed
    markdown = report_markdown(report)
    assert all(f"| {name} | {text} |" in markdown for name, text in understood(named).rows)
    found = stagescope.api.report_json(report)["understood"]
    assert found["microbatches"] == {"count": 2, "values": "0-1", "unknown": 0}
    assert (found["actions_per_step"], found["slices_used"], found["slices"]) == ([4, 4], 4, 7)


def test_numbers_that_no_action_states_are_null():
    timeline = stagescope.read(MEGASCAN, pattern="{kind}", map={"step": "args.iteration", "rank": "pid"})
    found = understood(replace(timeline, spans=timeline.spans.with_columns(step=None))).to_json()
    assert found["microbatches"] == {"count": None, "values": None, "unknown": 256}
    assert (found["steps"]["count"], found["actions_per_step"]) == (None, None)


def test_slices_that_match_no_rule_are_counted(named):
    found = understood(named)
    assert (found.slices_used, found.slices) == (4, 7)
    assert found.mappings == ("4 of 7 slices are used, by the mapping {kind}_{microbatch}",)


def test_slices_that_are_dropped_are_not_counted_as_used(tmp_path):
    trace = tmp_path / "rank0.json"
    names = ["forward_0", "load", "forward_1", "backward_0", "backward_1"]
    events = [{"ph": "X", "name": name, "ts": 9 * i, "dur": 5} for i, name in enumerate(names)]
    events[2]["dur"] = -1
    trace.write_text(json.dumps({"traceEvents": events}))
    read = stagescope.read(trace, pattern="{kind}_{microbatch}")
    counts = dict(read.diagnostics.select("code", "count").iter_rows())
    assert (counts["spans.reversed"], counts["trace.mapped"], counts["trace.unmapped"]) == (1, 3, 1)
    found = understood(read)
    assert (found.slices_used, found.slices) == (3, 5)
    assert found.mappings == ("3 of 5 slices are used, by the mapping {kind}_{microbatch}",)


def test_a_recording_has_no_such_table_in_any_form():
    report = stagescope.analyze(timeline_from_text("F0 B0"))
    assert stagescope.api.report_json(report)["understood"] is None
    assert "understood" not in report_markdown(report)
    assert "understood" not in report_extras(report).objects
