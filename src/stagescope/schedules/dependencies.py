"""The dependency rule: which actions must end before an action can start.

This is the only place where the rule is written down. The simulator, the lower bound, the explanation of deadlocks,
the analysis of recorded runs and the links of the viewer all read `RULES`.

    F(s, j)           needs F(s-1, j)               its activation; none on the first stage
    B(s, j), I(s, j)  need B(s+1, j) or I(s+1, j)   the gradient of its output; none on the last stage
    B(s, j), I(s, j)  need F(s, j)                  the activations that its own forward kept
    W(s, j)           needs I(s, j)                 the gradient that its own backward propagated

Source: arXiv 2401.10241, section 2; torch.distributed.pipelining has the same rule in `_PipelineScheduleRuntime`. An
overlapped pair needs what both of its parts need.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One line of the dependency rule: an action of `consumers` needs one action of `producers`.

    Both are letters of action kinds. The producer has the same micro-batch and is `stage_offset` stages further down
    the model; where there is no such stage, nothing is needed. Of several kinds of producer one is enough, since a
    backward runs either whole (B) or split (I and W); the usual one is first.
    """

    consumers: str
    producers: str
    stage_offset: int

    @property
    def crosses_stages(self) -> bool:
        """Whether producer and consumer are on different stages, so that a message may carry the result."""
        return self.stage_offset != 0


ACTIVATION = Rule("F", "F", -1)
GRADIENT = Rule("BI", "BI", +1)
KEPT_ACTIVATION = Rule("BI", "F", 0)
KEPT_GRADIENT = Rule("W", "IB", 0)

RULES: tuple[Rule, ...] = (ACTIVATION, GRADIENT, KEPT_ACTIVATION, KEPT_GRADIENT)
"""The whole rule. Inputs from another stage come before inputs from the same one."""


class Need(NamedTuple):
    """What one action needs: an action of any of `kinds` on `stage`, of the same micro-batch."""

    kinds: str
    stage: int


def needs(kind: str, stage: int, last_stage: int) -> tuple[Need, ...]:
    """Return what an action needs, an input from another stage first; empty for the forward of stage 0.

    `kind` is one of the letters F, B, I and W. The gradient of the next stage implies the forward of the own stage,
    because the micro-batch passed here on its way down: to draw only direct predecessors, use the first need.

    >>> needs("B", stage=2, last_stage=3)
    (Need(kinds='BI', stage=3), Need(kinds='F', stage=2))
    >>> needs("B", stage=3, last_stage=3)
    (Need(kinds='F', stage=3),)
    """
    return tuple(
        Need(rule.producers, stage + rule.stage_offset)
        for rule in RULES
        if kind in rule.consumers and 0 <= stage + rule.stage_offset <= last_stage
    )
