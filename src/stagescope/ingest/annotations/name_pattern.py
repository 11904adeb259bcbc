"""Patterns for the names of actions in a trace (``--pattern``), such as ``{kind}_{microbatch}``.

The words in braces are fields; ``*`` matches any text, and everything else matches literally.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.kinds import KIND_NAMES, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

SPELLINGS: dict[str, tuple[str, ...]] = {
    "forward": ("fwd", "fw", "fprop", "forward_step", "forward_pass", "f"),
    "backward": ("bwd", "bw", "bprop", "backward_step", "backward_pass", "b"),
    "backward_input": ("bwd_input", "dgrad", "input_grad", "bi", "i"),
    "backward_weight": ("bwd_weight", "wgrad", "weight_grad", "bw_w", "w"),
    "optimizer": ("optim", "optimizer_step", "step_optimizer", "opt"),
    "send_forward": ("send_fwd", "send_f", "send_activation", "sendactivation"),
    "recv_forward": ("recv_fwd", "recv_f", "recv_activation", "recvactivation"),
    "send_backward": ("send_bwd", "send_b", "send_grad", "sendgrad"),
    "recv_backward": ("recv_bwd", "recv_b", "recv_grad", "recvgrad"),
    "grad_reduce": ("allreduce", "all_reduce", "reduce_grad", "reduce_grads"),
    "loss": (),
}
KIND_OF: dict[str, str] = {
    **{name: name for name in KIND_NAMES if name != "other"},
    **{spelled: name for name, others in SPELLINGS.items() for spelled in others},
}
LANE_OF: dict[str, str] = {kind.name: kind.lane for kind in KINDS}

NUMBERS = ("stage", "microbatch", "chunk", "step", "rank", "peer")
FIELDS = ("kind", *NUMBERS)
PART = re.compile(r"\{(\w*)\}|(\*)|([^{}*]+)|([{}])")
# Longest first, because a regular expression takes the first alternative that matches: "forward_step" before "f".
KIND_WORDS = "|".join(sorted(map(re.escape, KIND_OF), key=len, reverse=True))

COMMON_PATTERNS = (
    "{kind}{stage}.{microbatch} step {step}",
    "{kind}{stage}.{microbatch}",
    "{kind}_{microbatch}",
    "{kind}-{microbatch}",
    "{kind} {microbatch}",
    "{kind}{microbatch}",
    "{kind}_mb{microbatch}",
    "{kind}_mb_{microbatch}",
    "{kind} mb{microbatch}",
    "{kind} mb {microbatch}",
    "{kind}_microbatch{microbatch}",
    "{kind}_microbatch_{microbatch}",
    "{kind} microbatch {microbatch}",
    "{kind} micro-batch {microbatch}",
)
"""The patterns to try, in this order, if the caller gives none."""


def common_pattern(names: Iterable[str]) -> str | None:
    """Return the first of COMMON_PATTERNS that names of forwards and of backwards match; None if there is none."""
    every = list(names)
    for text in COMMON_PATTERNS:
        pattern = NamePattern(text)
        kinds = {action.kind for name in every if (action := pattern.action(name)) is not None}
        if "forward" in kinds and kinds & {"backward", "backward_input"}:
            return text
    return None


class NamedAction(NamedTuple):
    """The fields of a name that matches a pattern."""

    kind: str
    lane: str
    numbers: dict[str, int]


class NamePattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Compile a pattern; raises UsageError if it lacks {kind}, or has unknown or repeated fields."""
        self.text = text
        fields = [part[1] for part in PART.finditer(text) if part[1] is not None]
        broken = any(part[4] for part in PART.finditer(text))
        if broken or "kind" not in fields or not set(fields) <= set(FIELDS) or len(set(fields)) < len(fields):
            raise UsageError.pattern_malformed(text, FIELDS)
        self._expression = re.compile("".join(map(_expression, PART.finditer(text))), re.IGNORECASE)

    def action(self, name: str) -> NamedAction | None:
        """Return the fields of a name; None if it does not match.

        >>> NamePattern("{kind}_{microbatch}").action("fwd_3")
        NamedAction(kind='forward', lane='compute', numbers={'microbatch': 3})
        """
        found = self._expression.fullmatch(name)
        if found is None:
            return None
        groups = found.groupdict()
        kind = KIND_OF[groups.pop("kind").lower()]
        return NamedAction(kind, LANE_OF[kind], {field: int(text) for field, text in groups.items()})


def _expression(part: re.Match[str]) -> str:
    field, anything, literal = part[1], part[2], part[3]
    if field == "kind":
        return f"(?P<kind>{KIND_WORDS})"
    if field is not None:
        # At most nine digits, which fit the Int32 columns of the tables.
        return rf"(?P<{field}>\d{{1,9}})"
    return ".*" if anything else re.escape(literal)
