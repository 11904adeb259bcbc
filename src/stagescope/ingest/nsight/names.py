"""What an NVTX range is called and what that means.

Sources: what torch's schedules and stagescope's mirror call their actions is in ingest/annotations/names.py
(`torch.autograd.profiler.emit_nvtx` gives torch's names to NVTX). sail-sg/zero-bubble-pipeline-parallelism,
megatron/core/pipeline_parallel/zerobubble/runtime.py: ``F3.0.17`` is micro-batch 3, chunk 0, and a running number.
Training loops of one's own often mark ``forward_step`` without a number.
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
"""What emit_nvtx may append to a name."""

LEAST_WORD = 3
WORDS = {word: kind for word, kind in KIND_OF.items() if len(word) >= LEAST_WORD}
PLAIN = tuple(NamePattern(text) for text in COMMON_PATTERNS)


class RangeMeaning(NamedTuple):
    """A action that a range is; the numbers are None where the name does not tell them."""

    kind: str
    stage: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    step: int | None = None


def range_meaning(name: str, pattern: NamePattern | None = None) -> RangeMeaning | None:
    """Return the action that a range of this name is; None where it is none.

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
    """Return the number of a training step that a range of this name is; None where it is none."""
    found = STEP.fullmatch(name)
    return int(found[1]) if found else None
