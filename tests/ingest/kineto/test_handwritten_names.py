"""Annotations of loops written by hand: real traces of torch's GPipe, whose annotations have other names."""

import gzip
import json
import re
import shlex

import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.cli import main
from stagescope.vocabulary.errors import InputError

GPIPE = DATA / "kineto" / "GPipe"
TORCH = re.compile(r"(Forward|Backward) (\d+)")


@pytest.fixture
def renamed(tmp_path):
    """Return a function that writes the traces with annotations named by a pattern, without operators if wanted."""

    def write(forward, backward, *, operators=True):
        names = {"Forward": forward, "Backward": backward}
        for rank in range(4):
            trace = json.loads(gzip.decompress((GPIPE / f"rank{rank}.json.gz").read_bytes()))
            for event in trace["traceEvents"]:
                if found := TORCH.fullmatch(event.get("name", "")):
                    event["name"] = names[found[1]].format(found[2])
            if not operators:
                trace["traceEvents"] = [
                    event
                    for event in trace["traceEvents"]
                    if event.get("cat", "user_annotation") == "user_annotation"
                ]
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
        return tmp_path

    return write


def rows(timeline):
    spans = timeline.spans.select("rank", pl.col("kind").cast(pl.String), "microbatch", "start_ns", "end_ns")
    return spans.sort(spans.columns, nulls_last=True).rows()


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("fwd_mb{}", "bwd_mb{}"),
        ("forward microbatch {}", "backward microbatch {}"),
        ("Forward_Micro_Batch_{}", "Backward_Micro_Batch_{}"),
        ("F mb={}", "B mb={}"),
        ("forward_step micro-batch {}", "backward_step micro-batch {}"),
    ],
)
def test_names_that_state_the_microbatch_are_read_as_those_of_torch(renamed, forward, backward):
    assert rows(stagescope.read(renamed(forward, backward))) == rows(stagescope.read(GPIPE))


@pytest.mark.parametrize(
    ("forward", "backward"), [("forward_{}", "backward_{}"), ("F{}", "B{}"), ("fwd-{}", "bwd-{}")]
)
def test_a_number_alone_needs_the_pattern_that_the_error_names(renamed, capsys, forward, backward):
    directory = renamed(forward, backward, operators=False)
    assert main(["show", str(directory)]) == 1
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith(
        "  if the numbers of the annotations are micro-batches, not layers or steps, add --pattern "
    )
    words = shlex.split(hint.partition(", add ")[2])
    assert main(["show", str(directory), *words]) == 0
    read = stagescope.read(directory, pattern=words[1])
    kinds = read.spans.filter(pl.col("kind").is_in(["forward", "backward"])).group_by("kind").len()
    assert kinds["len"].to_list() == [32, 32]


def test_waits_within_annotations_that_match_a_pattern_are_no_work(renamed):
    directory = renamed("forward_{}", "backward_{}")
    read = stagescope.read(directory, pattern="{kind}_{microbatch}")
    assert rows(read) == rows(stagescope.read(GPIPE))


def test_nested_annotations_are_no_actions(renamed):
    directory = renamed("forward_{}", "backward_{}", operators=False)
    for file in directory.iterdir():
        trace = json.loads(file.read_text())
        events = trace["traceEvents"]
        outer = [event for event in events if re.fullmatch(r"(forward|backward)_\d+", event.get("name", ""))]
        for event in outer:
            kind = event["name"].partition("_")[0]
            inner = {"ts": event["ts"] + event["dur"] / 4, "dur": event["dur"] / 2}
            events += [event | inner | {"name": f"{kind} mb 3"}, event | {"name": f"{kind} mb 1"}]
        file.write_text(json.dumps(trace))
    with pytest.raises(InputError, match="no pipeline action"):
        stagescope.read(directory)
