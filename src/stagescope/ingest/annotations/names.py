"""Parse the annotation names of torch's pipeline schedules and of stagescope's own mirror.

Sources: torch 2.13.0, torch/distributed/pipelining/schedules.py (`_Action.__str__`: ``PP:1F0``, ``PP:6I3``,
``PP:1SEND_F0``, ``PP:4UNSHARD``, ``PP:(1F6;6B2)OVERLAP_F_B``; GPipe and forward-only schedules: ``Forward 3``),
torch/profiler/profiler.py (``ProfilerStep#3``), torch/optim/optimizer.py (``Optimizer.step#Adam.step``); and
stagescope/record/mirrors.py (``F1.3 step 2``). Loops written by hand use many spellings. Read are those that name the
micro-batch (``fwd_mb2``, ``forward microbatch 2``). A number alone (``forward_2``) may be that of a layer or a step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.annotations.name_pattern import KIND_OF, NamePattern
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, KINDS, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Callable

ACTION, PLAIN, MIRROR = "action", "plain", "mirror"
"""The origin of a name: torch's runtime schedules (``PP:1F0``), torch's GPipe (``Forward 0``) or a loop written by hand
(``fwd_mb0``), both with the transfers, and stagescope's mirror."""

KIND_OF_ACTION = {
    "F": "forward",
    "B": "backward",
    "I": "backward_input",
    "W": "backward_weight",
    "SEND_F": "send_forward",
    "RECV_F": "recv_forward",
    "SEND_B": "send_backward",
    "RECV_B": "recv_backward",
    "REDUCE_GRAD": "grad_reduce",
    "UNSHARD": "other",
    "RESHARD": "other",
}
LETTERS = {kind.letter: kind.name for kind in KINDS if kind.name not in TRANSFERS}

ONE_ACTION = re.compile(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|UNSHARD|RESHARD)(\d*)")
PLAIN_NAME = re.compile(r"(Forward|Backward) (\d+)")
MIRROR_ACTION = re.compile(r"([A-Z])(\d+)?(?:\.(\d+))?(?: step (\d+))?")
MIRROR_KIND = re.compile(rf"({'|'.join(BY_NAME)})(?: step (\d+))?")
ACTION_WORDS = sorted((word for word, kind in KIND_OF.items() if kind in ACTION_KINDS), key=len, reverse=True)
STATED = re.compile(
    rf"({'|'.join(ACTION_WORDS)})[ _-]?(?:mb|micro[ _-]?batch)[ _:#=-]?(\d{{1,9}})", re.IGNORECASE
)
STEP = re.compile(r"ProfilerStep#(\d+)")
OPTIMIZER = re.compile(r"Optimizer\.step#.*")
MOST_DIGITS = 9


class Meaning(NamedTuple):
    """One action or event named by an annotation; `place` numbers those of one annotation in execution order."""

    style: str
    kind: str
    stage: int | None = None
    microbatch: int | None = None
    step: int | None = None
    place: int = 0
    text: str | None = None


def meanings(name: str) -> tuple[Meaning, ...]:
    """Return the meanings of an annotation: two for an overlapped pair, none if the name is unrelated to a pipeline.

    >>> [(one.kind, one.stage, one.microbatch) for one in meanings("PP:(1F6;6B2)OVERLAP_F_B")]
    [('forward', 1, 6), ('backward', 6, 2)]
    """
    if name.startswith("PP:"):
        return _actions(name.removeprefix("PP:"))
    if plain := PLAIN_NAME.fullmatch(name):
        return (Meaning(PLAIN, plain[1].lower(), microbatch=_number(plain[2])),)
    if stated := STATED.fullmatch(name):
        return (Meaning(PLAIN, KIND_OF[stated[1].lower()], microbatch=_number(stated[2])),)
    if OPTIMIZER.fullmatch(name):
        return (Meaning(PLAIN, "optimizer"),)
    return _mirrored(name)


def pattern_meanings(pattern: str) -> Callable[[str], tuple[Meaning, ...]]:
    """Return a function like `meanings` that also recognizes names that match the caller's pattern."""
    described = NamePattern(pattern)

    def find(name: str) -> tuple[Meaning, ...]:
        action = described.action(name)
        if action is None:
            return meanings(name)
        stage, microbatch, step = (action.numbers.get(field) for field in ("stage", "microbatch", "step"))
        return (Meaning(MIRROR, action.kind, stage, microbatch, step),)

    return find


def step_number(name: str) -> int | None:
    """Return the step number of a torch.profiler step; None for other annotations."""
    found = STEP.fullmatch(name)
    return _number(found[1]) if found else None


def _actions(body: str) -> tuple[Meaning, ...]:
    # An overlapped pair is `(1F6;6B2)OVERLAP_F_B`: both actions share the parentheses.
    inner = body[1:].partition(")")[0].split(";") if body.startswith("(") else [body]
    found = [ONE_ACTION.fullmatch(one) for one in inner]
    return tuple(
        Meaning(
            ACTION,
            KIND_OF_ACTION[one[2]],
            _number(one[1]),
            _number(one[3]),
            place=place,
            text=one[2] if KIND_OF_ACTION[one[2]] == "other" else None,
        )
        for place, one in enumerate(found)
        if one
    )


def _mirrored(name: str) -> tuple[Meaning, ...]:
    if action := MIRROR_ACTION.fullmatch(name):
        # A letter alone, or with a stage only (`B2`), is too likely to be a user's own name.
        if action[1] not in LETTERS or not (action[3] or action[4]):
            return ()
        stage, microbatch, step = map(_number, action.groups()[1:])
        return (Meaning(MIRROR, LETTERS[action[1]], stage, microbatch, step),)
    if kind := MIRROR_KIND.fullmatch(name):
        return (Meaning(MIRROR, kind[1], step=_number(kind[2])),) if kind[2] else ()
    return ()


def _number(text: str | None) -> int | None:
    # More digits do not fit the Int32 columns of the tables.
    return int(text) if text and len(text) <= MOST_DIGITS else None
