"""What is found wrong or unusual in a trace of one rank."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A diagnostic of one trace, before its source and rank are added."""

    severity: str
    code: str
    message: str
    number: int


UNMATCHED_BACKWARDS = Finding(
    "warning",
    "backwards.unmatched",
    "backwards have no forward in the trace and were dropped: the trace begins in the middle of a step",
    1,
)
UNMATCHED_TRANSFERS = Finding(
    "warning",
    "transfers.not_1f1b",
    "transfers match no complete step of 1F1B between two marks (of profiler.step() or an optimizer); without operators"
    " no other order can be recognized",
    1,
)
UNMATCHED_ON_FILES = Finding(
    "warning",
    "transfers.not_1f1b",
    "transfers match no complete step of 1F1B, on as many ranks as there are traces, between two marks (of"
    " profiler.step() or an optimizer); the traces state neither world size nor process groups",
    1,
)
UNPLACED_TRANSFERS = Finding(
    "warning",
    "transfers.unplaced",
    "transfers show no actions: the trace does not state its rank and process groups, and the names of the files do not"
    " number all ranks (start torch.profiler after init_process_group, or name the files rank0.json, rank1.json …)",
    1,
)
TRANSFERS_WITHOUT_ACTION = Finding(
    "info",
    "transfers.without_action",
    "transfers belong to no action, such as those of an evaluation or of the initial shape exchange, and were dropped",
    1,
)
EVALUATIONS = Finding(
    "info",
    "steps.evaluation",
    "steps contain only forwards: they are evaluations and not counted as training steps",
    1,
)
FORWARDS_WITH_LOSS = Finding(
    "info",
    "actions.with_loss",
    "forwards include their loss: no operator has the name of a loss, so its beginning is unknown",
    1,
)
UNSPLIT_PAIRS = Finding(
    "info",
    "pairs.not_split",
    "overlapped pairs are shown as two actions at the same time: no operator separates them",
    1,
)
WITHOUT_KERNELS = Finding(
    "warning",
    "actions.on_host",
    "actions have no kernel in the trace and are shown where the host launched them",
    1,
)
ONLY_PARTS = Finding(
    "warning",
    "actions.only_parts",
    "annotations name parts of overlapped pairs, such as attn(F), without their micro-batch or stage: a pair is no"
    " step, so the bubble is unknown",
    1,
)


IN_GRAPHS = Finding(
    "info",
    "actions.in_graphs",
    "actions run inside CUDA graphs and are taken from the names of their kernels",
    1,
)
