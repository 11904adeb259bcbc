"""stagescope inspect: what is in a trace, and how it could be read."""

import gzip
import json
from pathlib import Path

import pytest

import stagescope
from stagescope import api
from stagescope.cli import main
from stagescope.ingest.mapping import contents as contents_module
from stagescope.vocabulary.errors import InputError

DATA = Path(__file__).parents[1] / "data"
MEGASCAN = DATA / "mapped" / "megascan-pp-iter10.json.gz"


def event(name, microbatch, start, **more):
    args = {"mb": microbatch, "it": "x", "step": 0}
    return {
        "ph": "X",
        "name": name,
        "pid": 7,
        "tid": 1,
        "cat": "c",
        "ts": start,
        "dur": 5,
        "args": args,
        **more,
    }


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "anything.json.gz"
    events = [event("fwd", 0, 0), event("fwd", 1, 5), event("bwd", 0, 10), event("bwd", 1, 15)]
    events += [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "rank\x1b]52;c;aGk=\x07 7"}}]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_lists_what_is_in_a_trace_with_counts_and_examples(trace, capsys):
    assert main(["inspect", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "5 events over 20.00 µs (4 X, 1 M)" in out
    assert "fwd  2" in out
    assert "mb    4  such as 0, 1" in out
    assert "pid 7  4" in out


def test_foreign_text_is_printed_without_control_characters(trace, capsys):
    main(["inspect", str(trace)])
    assert "\x1b" not in capsys.readouterr().out


def test_the_proposed_options_read_the_trace(trace, capsys):
    main(["inspect", str(trace)])
    assert "--map step=args.step --map microbatch=args.mb" in capsys.readouterr().out
    inspection = api.inspect(trace)
    fields = dict(inspection.proposal.fields)
    timeline = stagescope.read(trace, map=fields)
    assert timeline.spans.select("kind", "step", "microbatch").rows() == [
        ("forward", 0, 0), ("forward", 0, 1), ("backward", 0, 0), ("backward", 0, 1),
    ]  # fmt: skip


def test_the_proposed_file_reads_the_trace(trace, tmp_path, capsys):
    main(["inspect", str(trace), "--toml"])
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(capsys.readouterr().out)
    assert 'microbatch = "args.mb"' in mapping.read_text()
    assert stagescope.read(trace, mapping=mapping).spans["microbatch"].to_list() == [0, 1, 0, 1]


def test_a_shipped_mapping_that_fits_is_named(capsys):
    assert main(["inspect", str(MEGASCAN), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proposal"]["shipped"] == "megascan"
    assert found["names"] == {
        "forward": 256, "backward": 256, "iteration begin": 4, "reduce": 4, "iteration end": 4,
    }  # fmt: skip
    assert found["arguments"]["microbatch"]["events"] == 256


def test_works_for_traces_of_torch_profiler():
    traces = sorted((DATA / "kineto").rglob("*.json*"))
    found = api.inspect(traces[0]).contents
    assert "cpu_op" in found.categories.of or "user_annotation" in found.categories.of


def test_memory_is_bounded_whatever_the_trace_has(tmp_path, monkeypatch):
    for name in ("MOST_DISTINCT", "MOST_KEYS"):
        monkeypatch.setattr(contents_module, name, 10)
    path = tmp_path / "trace.json"
    events = [event(f"n{number}", number, number, args={f"k{number}": number}) for number in range(100)]
    path.write_text(json.dumps(events))
    found = api.inspect(path).contents
    assert (len(found.names.of), found.names.others) == (10, 90)
    assert (len(found.arguments), found.other_keys) == (10, 90)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "rank0.sscope"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match="is not a Chrome trace"):
        api.inspect(path)
    path.write_text("{}")
    with pytest.raises(InputError, match="no list of events"):
        api.inspect(path)
