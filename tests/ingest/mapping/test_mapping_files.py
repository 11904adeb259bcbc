"""Mapping files: read as described, refused with the key that is wrong, whatever they hold."""

import contextlib
import importlib
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stagescope
from stagescope.ingest.mapping.mapping import MappingRequest
from stagescope.ingest.mapping.mapping_files import MOST_BYTES, load_mapping, ready_mappings
from stagescope.ingest.mapping.request import mapping_request
from stagescope.vocabulary.errors import InputError, StagescopeError, UsageError

RULE = {"name": "fwd*", "kind": "forward"}
EVENTS = [
    {"name": "work", "op": "F", "mb": 0, "ts": 0}, {"name": "work", "op": "F", "mb": 1, "ts": 10},
    {"name": "work", "op": "B", "mb": 0, "ts": 20}, {"name": "work", "op": "B", "mb": 1, "ts": 30},
    {"name": "idle", "op": "F", "mb": 7, "ts": 40},
]  # fmt: skip
TOML = """
[fields]
step = "args.at.iteration - 10"
microbatch = "args.mb"
rank = "thread.rank"

[texts]
thread = "stream of rank {rank}"

[[rules]]
name = "work"
args.op = "F"
kind = "forward"

[[rules]]
name = "work"
args.op = "B"
kind = "backward"
"""


@pytest.fixture
def trace(tmp_path):
    events = [
        {"ph": "M", "name": "thread_name", "pid": "gpu", "tid": 4, "args": {"name": "stream of rank 3"}}
    ]
    for one in EVENTS:
        args = {"op": one["op"], "mb": str(one["mb"]), "at": {"iteration": 12}}
        where = {"pid": "gpu", "tid": 4, "args": args}
        events.append({"ph": "X", "name": one["name"], "ts": one["ts"], "dur": 9.0, **where})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    return path


def written(tmp_path, content, name="mapping.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_rules_texts_and_nested_arguments_state_the_identity(trace, tmp_path):
    timeline = stagescope.read(trace, mapping=written(tmp_path, TOML, "mapping.toml"))
    assert timeline.spans.select("rank", "kind", "step", "microbatch").rows() == [
        (3, "forward", 2, 0), (3, "forward", 2, 1), (3, "backward", 2, 0), (3, "backward", 2, 1),
    ]  # fmt: skip
    assert any("4 of 5 slices are used" in text for text in timeline.diagnostics["message"])


def test_python_without_tomllib_reads_mappings_with_tomli(trace, tmp_path, monkeypatch):
    path = written(tmp_path, TOML, "mapping.toml")
    expected = stagescope.read(trace, mapping=path).spans
    monkeypatch.setitem(sys.modules, "tomllib", None)  # an import of it fails, as on Python 3.10
    imported = []
    monkeypatch.setattr(
        "stagescope.ingest.mapping.mapping_files.import_module",
        lambda name: imported.append(name) or importlib.import_module(name),
    )
    assert stagescope.read(trace, mapping=path).spans.equals(expected)
    assert imported == ["tomllib", "tomli"]
    with pytest.raises(UsageError, match="TOML: "):
        load_mapping(written(tmp_path, "[rules", "broken.toml"))


def test_every_shipped_mapping_loads_by_its_name():
    assert set(ready_mappings()) == {
        *("bytedance", "bytedance_ideal", "megascan", "megatron", "ndtimeline", "torchtitan"),
    }
    assert mapping_request(None, "megascan", None) == MappingRequest(ready_mappings()["megascan"])
    assert mapping_request(None, None, None) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "rules: expected 1 to 200"),
        ({"rules": [{}]}, "rule 1: kind: expected"),
        ({"rules": [{"kind": "forward"}]}, "rule 1: expected a pattern"),
        ({"rules": [{**RULE, "kind": "forwards"}]}, "rule 1: kind: expected"),
        ({"rules": [{**RULE, "lane": "gpu"}]}, "rule 1: lane: expected"),
        ({"rules": [{**RULE, "color": "red"}]}, "rule 1 'color': expected"),
        ({"rules": [{**RULE, "fields": {"step": "1 +"}}]}, "character 4"),
        ({"rules": [{**RULE, "fields": {"step": 1.5}}]}, "fields step: expected an expression"),
        ({"rules": [RULE], "fields": 3}, "fields: expected a table"),
        ({"rules": [RULE], "more": 3}, "'more': expected one of the keys"),
        ({"rules": [{"name": "{kind}_{kind}"}]}, "--pattern"),
        ({"rules": [{"name": 1.5, "kind": "forward"}]}, "name: expected a text"),
        ({"rules": [RULE], "recognize": {"names": "forward"}}, "names: expected a list"),
        ("[", "expected JSON"),
    ],
)
def test_a_malformed_mapping_is_refused_with_its_place(tmp_path, content, message):
    with pytest.raises(UsageError) as error:
        load_mapping(written(tmp_path, content))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (".".join(["a"] * 50_000) + " = 1", "at most 64 dots in a line"),
        ("[[rules]]\n" + ".".join(["args"] * 60) + " = 'F'", "at most 8 nested tables"),
        ("x = " + "9" * 5000, "expected TOML: "),
        ("x = " + "[" * 50_000, "expected TOML: "),
        ("[[rules]]\nname = '{kind}'\n[fields]\nstep = 0x" + "f" * 5000, "step: expected an expression"),
        ("[[rules]]\nkind = 'forward'\nname = 0x" + "f" * 5000, "name: expected a text"),
    ],
)
def test_nesting_and_numbers_of_any_size_are_refused(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        load_mapping(written(tmp_path, content, "mapping.toml"))


def test_large_missing_and_binary_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at most 256 KiB"):
        load_mapping(written(tmp_path, " " * (MOST_BYTES + 1)))
    with pytest.raises(InputError, match="no such mapping"):
        load_mapping(tmp_path / "nothing.toml")
    with pytest.raises(InputError, match="it is a directory"):
        load_mapping(tmp_path)


KEYS = st.sampled_from(
    ["rules", "fields", "texts", "only", "recognize", "name", "kind", "args", "step", "names", "lane", "x"]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
RULES = st.lists(
    st.dictionaries(KEYS, JSON_VALUES | st.sampled_from(["forward", "*{x}", "{kind}"]), max_size=4),
    max_size=3,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(KEYS, JSON_VALUES | RULES, max_size=4))
def test_whatever_a_file_holds_it_is_a_mapping_or_refused(tmp_path, content):
    with contextlib.suppress(StagescopeError):
        load_mapping(written(tmp_path, content))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.text(alphabet="args.pid ()+-*/%[]'0123456789", max_size=30))
def test_whatever_an_option_holds_it_is_a_request_or_refused(name, text):
    for fields, only in (
        ({"step": text}, None),
        ({name: text}, None),
        (None, {"name": text}),
        (None, {name: text}),
    ):
        with contextlib.suppress(StagescopeError):
            mapping_request(fields, None, only)
