"""Parse the names of ranges that a training marks: NVTX, roctx, TraceAnnotation.

Sources: ingest/annotations/names.py for the names of torch's schedules and of stagescope's mirror
(`torch.autograd.profiler.emit_nvtx` emits torch's names as NVTX ranges); sail-sg/zero-bubble-pipeline-parallelism,
megatron/core/pipeline_parallel/zerobubble/runtime.py, for ``F3.0.17`` (micro-batch 3, chunk 0, and a running number).
Custom training loops often mark ``forward_step`` without a number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stagescope.ingest.annotations.name_pattern import COMMON_PATTERNS, KIND_OF, NamePattern
from stagescope.ingest.annotations.names import meanings

ZERO_BUBBLE = re.compile(r"([FBW])(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
ZERO_BUBBLE_KINDS = {"F": "forward", "B": "backward", "W": "backward_weight"}
STEP = re.compile(
    r"(?:iteration|iter|training[ _-]step|train[ _-]step|step|ProfilerStep)[ _:#-]*(\d{1,9})", re.IGNORECASE
)
MEMORY_ADDRESS = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*")
"""Suffix that emit_nvtx may append to a name."""

LEAST_WORD = 3
WORDS = {word: kind for word, kind in KIND_OF.items() if len(word) >= LEAST_WORD}
PLAIN = tuple(NamePattern(text) for text in COMMON_PATTERNS)


class RangeMeaning(NamedTuple):
    """The action that a range represents; numbers that the name does not state are None."""

    kind: str
    stage: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    step: int | None = None


def range_meaning(name: str, pattern: NamePattern | None = None) -> RangeMeaning | None:
    """Return the action that a range of this name represents; None if it is not an action.

    >>> range_meaning("F3.0.17")
    RangeMeaning(kind='forward', stage=None, microbatch=3, chunk=0, step=None)
    """
    if pattern is not None and (action := pattern.action(name)):
        return RangeMeaning(action.kind, *map(action.numbers.get, RangeMeaning._fields[1:]))
    text = MEMORY_ADDRESS.sub("", name)
    if found := ZERO_BUBBLE.fullmatch(text):
        return RangeMeaning(ZERO_BUBBLE_KINDS[found[1]], microbatch=int(found[2]), chunk=int(found[3]))
    known = meanings(text)
    if len(known) == 1 and known[0].kind != "other":
        return RangeMeaning(known[0].kind, known[0].stage, known[0].microbatch, step=known[0].step)
    for common in PLAIN:
        if action := common.action(text):
            return RangeMeaning(action.kind, *map(action.numbers.get, RangeMeaning._fields[1:]))
    kind = WORDS.get(text.lower().replace("-", "_").replace(" ", "_"))
    return RangeMeaning(kind) if kind else None


def step_of(name: str) -> int | None:
    """Return the number of the training step that a range of this name marks; None if it does not mark one."""
    found = STEP.fullmatch(name)
    return int(found[1]) if found else None
