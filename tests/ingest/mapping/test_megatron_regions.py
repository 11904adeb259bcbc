"""Traces of Megatron-LM's perfetto_trace.py: one event per line, a list that is never closed, one file per rank.

Source: megatron/core/perfetto_trace.py of NVIDIA/Megatron-LM at 6bdc3db.
"""

import json

import pytest

import stagescope
from stagescope.vocabulary.errors import InputError

EPOCH_US = 1.7e15


def write(folder, rank, regions):
    """Write regions (name, start, end) as the tracer does: begin and end lines without arguments."""
    lines = ['{"traceEvents":[\n']
    for name, start, end in regions:
        for phase, at in (("B", start), ("E", end)):
            event = {"name": name, "ph": phase, "ts": EPOCH_US + at, "pid": 4000 + rank, "tid": 5000 + rank}
            lines.append(json.dumps(event) + ",\n")
    (folder / f"perfetto_train_rank{rank}.json").write_text("".join(lines))


def test_regions_of_actions_are_read_without_an_option_and_the_open_list_is_no_loss(tmp_path):
    write(tmp_path, 0, [("load_checkpoint", 0, 5), ("forward_0", 10, 20), ("backward_0", 40, 60)])
    write(tmp_path, 1, [("load_checkpoint", 0, 5), ("forward_0", 21, 30), ("backward_0", 30, 39)])
    timeline = stagescope.read(tmp_path)
    actions = timeline.spans.filter(timeline.spans["lane"] == "compute").sort("rank", "start_ns")
    assert actions.select("rank", "kind", "microbatch").rows() == [
        (0, "forward", 0), (0, "backward", 0), (1, "forward", 0), (1, "backward", 0),
    ]  # fmt: skip
    assert not timeline.is_partial
    assert timeline.ranks["pp"].to_list() == [0, 1]


def test_its_own_regions_are_other_work_of_the_host(tmp_path):
    write(tmp_path, 0, [("save_checkpoint", 70, 90), ("forward_0", 10, 20), ("backward_0", 40, 60)])
    timeline = stagescope.read(tmp_path)
    others = timeline.spans.filter(timeline.spans["kind"] == "other")
    assert others.select("lane", "name", "microbatch").rows() == [("host", "save_checkpoint", None)]
    assert others["end_ns"][0] - others["start_ns"][0] == 20_000
    assert any("megatron, which was recognized" in text for text in timeline.diagnostics["message"])


def test_regions_of_checkpoints_alone_are_refused_in_one_sentence(tmp_path):
    write(tmp_path, 0, [("load_checkpoint", 0, 5), ("_load_base_checkpoint", 1, 4)])
    with pytest.raises(InputError, match=r"no slice name matches a known naming pattern; .*load_checkpoint"):
        stagescope.read(tmp_path)
