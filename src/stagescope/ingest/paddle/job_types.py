"""Meaning of the types of Paddle's jobs, as one declared table.

Source: PaddlePaddle 3.3.1, python/paddle/distributed/passes/pipeline_scheduler_pass/*.py and
auto_parallel/static/engine.py. A number after a type is the model chunk (`forward1`, `backward_w1_reduce`). The number
in parentheses is not: with FLAGS_1f1b_backward_forward_overlap the program of one job is split into two or more, and
`forward(chunk1)` is the second PIECE of that job.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stagescope.vocabulary.kinds import BY_NAME, COMPUTE, HOST


class JobType(NamedTuple):
    """Kind and lane of the span of a job, its model chunk, and its piece if the job was split.

    `chunk` is null for jobs without a chunk. `once` is true for jobs that run once per step: the micro-batch that they
    record (0 or none) has no meaning.
    """

    kind: str
    lane: str
    chunk: int | None = None
    piece: int = 0
    once: bool = False


KINDS: dict[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "backward_b": "backward_input",
    "backward_w": "backward_weight",
    "recv_forward": "recv_forward",
    "send_forward": "send_forward",
    "recv_backward": "recv_backward",
    "send_backward": "send_backward",
}
"""Jobs of a micro-batch: type without its number, and the kind of the span."""

ONCE: dict[str, JobType] = {
    "optimizer": JobType("optimizer", COMPUTE, once=True),
    "optimize": JobType("optimizer", COMPUTE, once=True),  # gradient merge without a pipeline
    "default": JobType("other", COMPUTE, once=True),  # the whole step as a single job
    "lr": JobType("other", HOST, once=True),
    "startup": JobType("other", HOST, once=True),
}
"""Jobs of a whole step or run. `lr` and `startup` compute no part of the model."""

UNKNOWN = JobType("other", HOST)

_TYPE = re.compile(
    rf"(?P<stem>{'|'.join(KINDS)})(?:(?P<chunk>\d{{1,4}})|\(chunk(?P<piece>\d{{1,4}})\))?(?:_reduce)?"
)


def describe_job(text: str) -> JobType:
    """Return the meaning of a job type; `UNKNOWN` for types that Paddle 3.3.1 does not have.

    >>> describe_job("backward_w1_reduce")
    JobType(kind='backward_weight', lane='compute', chunk=1, piece=0, once=False)
    >>> describe_job("forward(chunk1)").piece, describe_job("optimize").kind, describe_job("nccl").kind
    (1, 'optimizer', 'other')
    """
    if text in ONCE:
        return ONCE[text]
    found = _TYPE.fullmatch(text)
    if found is None:
        return UNKNOWN
    kind = KINDS[found["stem"]]
    # A type without a number is chunk 0: only schedules with several chunks append one.
    return JobType(kind, BY_NAME[kind].lane, int(found["chunk"] or 0), int(found["piece"] or 0))


def span_name(text: str) -> str | None:
    """Return the name of a span of this type: the type, or None if it equals the kind."""
    return None if text == describe_job(text).kind else text
