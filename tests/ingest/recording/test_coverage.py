"""What a header states about frameworks becomes diagnostics, and no damage of it prevents reading."""

from __future__ import annotations

import polars as pl
import pytest

from recordings import span_record, write_recording
from stagescope import api
from stagescope.record.launch import refusals_in

FACTS = {
    "Fake": {"version": "0.20", "recorded": False, "missing": ["`a:b` not found"], "supported": "0.7-0.19"},
    "Other": {
        "version": None,
        "recorded": True,
        "missing": [],
        "errors": 3,
        "error": "KeyError(1)",
        "disabled": True,
    },
    "Third": {"version": "1", "recorded": True, "missing": ["transfers"], "empty_steps": 2},
}
DAMAGED = (
    None,
    3,
    "text",
    [],
    {"a": None},
    {"a": {}},
    {"a": {"recorded": False}},
    {"a": {"recorded": False, "missing": "text", "version": [1]}},
    {"a": {"recorded": True, "missing": [1, {}], "errors": "5", "empty_steps": -1, "disabled": "yes"}},
    {"a": {"errors": 10**30, "empty_steps": 1e308}},
    {"\ud800": {"recorded": False, "missing": ["\udfff"], "supported": "\ud800"}},
)


def diagnostics(directory, frameworks):
    write_recording(directory / "r.sscope", [span_record()], frameworks=frameworks)
    return api.read(directory).diagnostics


def test_each_fact_has_its_diagnostic(tmp_path):
    found = diagnostics(tmp_path, FACTS).select("code", "severity", "count").rows()
    assert set(found) >= {
        ("framework.refused", "error", 1),
        ("hooks.failed", "error", 3),
        ("hooks.disabled", "error", 1),
        ("framework.partial", "warning", 1),
        ("steps.without_actions", "error", 2),
    }


def test_refused_framework_is_named_with_version_reason_and_range(tmp_path):
    messages = diagnostics(tmp_path, FACTS).filter(pl.col("code") == "framework.refused")["message"]
    assert messages.to_list() == [
        "Fake 0.20 does not fit, so nothing of it was recorded: `a:b` not found; supported 0.7-0.19"
    ]


@pytest.mark.parametrize("frameworks", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_facts_do_not_prevent_reading(tmp_path, frameworks):
    codes = set(diagnostics(tmp_path, frameworks)["code"])
    assert codes <= {"framework.refused", "framework.partial"}
    assert len(refusals_in([tmp_path / "r.sscope"])) <= 1
