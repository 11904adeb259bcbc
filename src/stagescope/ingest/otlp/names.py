"""What the names and attributes of spans mean.

Source: NVIDIA/Megatron-LM, docs/user-guide/observability (span-groups.md, configuration.md, pipeline-parallel.md) and
the calls of `trace_fn` and `managed_span` in megatron/core and megatron/training. Spans of other programs are read if
their names are those of actions (ingest/device_ranges/range_names.py), or with `--pattern`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.device_ranges.range_names import range_meaning, step_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.annotations.name_pattern import NamePattern

    Values = Mapping[str, str | int | float | bool]

KINDS = {
    "megatron.microbatch.forward": "forward",
    "megatron.microbatch.backward": "backward",
    "megatron.p2p.send_forward": "send_forward",
    "megatron.p2p.recv_forward": "recv_forward",
    "megatron.p2p.send_backward": "send_backward",
    "megatron.p2p.recv_backward": "recv_backward",
    "megatron.grad_sync.start": "grad_reduce",
    "megatron.grad_sync.finish": "grad_reduce",
    "megatron.optimizer_step": "optimizer",
    "megatron.evaluate": "other",
    "megatron.save_checkpoint": "other",
    "megatron.checkpoint.save": "other",
}
STEPS = ("megatron.train_step", "megatron.train.iteration")
EVALUATION = "megatron.evaluate"
SHOWN_NAMES = {name: name.removeprefix("megatron.") for name, kind in KINDS.items() if kind == "other"}

NUMBERS = {
    "stage": ("stage", "pipeline.stage", "virtual_stage"),
    "microbatch": ("megatron.microbatch_id", "dl.microbatch_id", "microbatch", "microbatch_id"),
    "chunk": ("chunk", "model_chunk", "megatron.vp_stage", "vp_stage"),
    "step": ("megatron.iteration", "iteration", "step"),
}
"""Attributes of spans with the numbers of actions; the first that is present counts."""

PIPELINE_RANK = ("dl.pipeline_parallel.rank", "pipeline_parallel.rank", "pp_rank")
RANKS = ("dl.rank", "rank", "global_rank", "process.rank", "torch.rank")
INSTANCE = "service.instance.id"
RANK_IN_INSTANCE = re.compile(r"rank[_-]?(\d{1,6})$")
HOST, DEVICE, RUN = "host.name", "gpu.name", "nemo.run.id"
LARGEST = 2**31


class Meaning(NamedTuple):
    """The kind of a span, and the numbers that its name or its attributes state."""

    kind: str
    stage: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    step: int | None = None


def meaning(name: str, values: Values, pattern: NamePattern | None) -> Meaning | None:
    """Return what a span is; None if it is nothing that is read."""
    if (kind := KINDS.get(name)) is not None and pattern is None:
        return Meaning(kind, *(first_number(values, NUMBERS[field]) for field in NUMBERS))
    found = range_meaning(name, pattern)
    if found is None:
        return None
    stated = {field: first_number(values, NUMBERS[field]) for field in NUMBERS}
    return Meaning(
        found.kind, *(stated[name] if (own := getattr(found, name)) is None else own for name in NUMBERS)
    )


def step_number(name: str, values: Values) -> int | None:
    """Return the number of the step that a span is; None if it is no step."""
    if name in STEPS:
        return first_number(values, NUMBERS["step"])
    return step_of(name)


def rank_of(resource: Values) -> int | None:
    """Return the rank of a process: an attribute of its resource, or the end of its instance id."""
    stated = first_number(resource, RANKS)
    if stated is not None:
        return stated
    found = RANK_IN_INSTANCE.search(str(resource.get(INSTANCE, "")))
    return int(found[1]) if found else None


def first_number(values: Values, keys: tuple[str, ...]) -> int | None:
    """Return the first of the attributes that is a number which can be one of an action."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST:
            return value
        if isinstance(value, str) and len(value) < 10 and value.isascii() and value.isdigit():  # noqa: PLR2004 - LARGEST
            return int(value)
    return None
