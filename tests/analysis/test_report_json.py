"""The report as JSON."""

import json

from drawing import timeline_from_text
from stagescope.analysis import build_report, to_json
from stagescope.model import empty_timeline
from stagescope.model.bubbles import DENOMINATOR
from stagescope.model.diagnostics import Diagnostic


def test_json_matches_the_schema():
    timeline = timeline_from_text("F0 B0 .\n. F0 B0", cell_ns=10)
    report = build_report(
        timeline.with_diagnostics(
            [Diagnostic("error", "lost", "a.sscope", 1, "byte 7", 3, code="test.finding")]
        )
    )
    third = 1 / 3
    step = {"step": 0, "start_ns": 0, "end_ns": 30, "window_ns": 30}
    figures = {
        "machine": None,
        "busy_ns": 20,
        "idle_ns": 10,
        "receive_wait_ns": None,
        "send_wait_ns": None,
        "window_ns": 30,
    }
    found = json.loads(json.dumps(to_json(report), allow_nan=False))
    # tests/analysis/test_bubble.py has the values of each definition.
    assert list(found["bubble"].pop("definitions")) == ["window", "iteration", "ideal-ratio", "own-span"]
    assert found == {
        "schema": 2,
        "schedule": {"declared": None},
        "understood": None,
        "microbatches": 1,
        "steps": [{**step, "bubble_fraction": third, "in_totals": True}],
        "ranks": [
            {"rank": 0, "stages": [0], **figures, "bubble_fraction": third},
            {"rank": 1, "stages": [1], **figures, "bubble_fraction": third},
        ],
        "bubble": {
            "fraction": third,
            "unknown_because": None,
            "per_rank": {"0": third, "1": third},
            "denominator": DENOMINATOR,
            "steps": [0],
        },
        "collectives": {"kinds": [], "ranks": [], "latest": []},
        "kernels": {"communication": []},
        "memory": [],
        "data": {"per_second": None, "steps": []},
        "clocks": None,
        "diagnostics": [
            {"severity": "error", "message": "lost", "source": "a.sscope", "rank": 1,
             "location": "byte 7", "count": 3, "code": "test.finding"}
        ],
    }  # fmt: skip


def test_empty_report_has_a_null_fraction():
    assert to_json(build_report(empty_timeline()))["bubble"]["fraction"] is None
