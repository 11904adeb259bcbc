"""Layouts of layers in words and in the notations of frameworks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST_REPEATED = 3
LEAST_PERCENT = 2
OTHERS = "the other stages"


def layout_line(counts: NDArray[np.int64]) -> str:
    """Return a layout in the notation of Megatron-LM's --pipeline-model-parallel-layout.

    E is the embedding, t a layer, L the output layer with the loss, | separates stages, x*n and (...)*n repeat
    (megatron/core/transformer/pipeline_parallel_layer_layout.py). Layers of multi-token prediction, m, are not known:
    they belong before L.

    >>> layout_line(np.array([3, 4, 4, 4, 1])), layout_line(np.array([2, 0]))
    ('Et*3|(t*4|)*3tL', 'Et*2|L')
    """
    stages = [_repeated("t", count) for count in counts.tolist()]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    *head, last = stages
    parts = []
    for stage, run in groupby(head):
        times = len(list(run))
        parts.append(f"({stage}|)*{times}" if times >= FEWEST_REPEATED else f"{stage}|" * times)
    return "".join([*parts, last])


def counts_text(counts: NDArray[np.int64]) -> str:
    """Return the layers of all stages in words; a single number if it is the same for all.

    >>> counts_text(np.array([4, 4, 4, 5, 3])), counts_text(np.array([4, 4]))
    ('4 (3 stages), 5, 3', '4')
    """
    runs = [(count, len(list(run))) for count, run in groupby(counts.tolist())]
    if len(runs) == 1:
        return str(runs[0][0])
    return ", ".join(
        f"{count} ({times} stages)" if times >= FEWEST_REPEATED else ", ".join([str(count)] * times)
        for count, times in runs
    )


def split_points(counts: NDArray[np.int64]) -> str:
    """Return the first layer of every stage but the first, as torch.distributed.pipelining splits before it.

    >>> split_points(np.array([3, 4, 1]))
    'layers.3, layers.7'
    """
    return ", ".join(f"layers.{first}" for first in np.cumsum(counts)[:-1].tolist())


def moves_text(shares: NDArray[np.float64]) -> str:
    """Return how many of its layers every stage gives or takes, given what remains of them.

    Each of many stages may take too little to be named.

    >>> print(moves_text(np.array([1.15, 1.15, 1.15, 0.55])))
    layers moved from stage 3 (-45 %) to stages 0-2 (+15 %)
    >>> print(moves_text(np.array([0.85, *[1.01] * 15])))
    layers moved from stage 0 (-15 %) to the other stages
    """
    percents = np.rint(100 * (shares - 1)).astype(np.int64)
    given, taken = (_moved(percents, sign) for sign in (-1, 1))
    if not given and not taken:
        return "layers as they are"
    return f"layers moved from {given or OTHERS} to {taken or OTHERS}"


def _moved(percents: NDArray[np.int64], sign: int) -> str:
    """Return the stages that give (-1) or take (1) layers, with the range of percentages."""
    chosen = np.flatnonzero(percents * sign >= LEAST_PERCENT)
    if not len(chosen):
        return ""
    least, most = sorted((int(percents[chosen].min()), int(percents[chosen].max())), key=abs)
    amount = f"{least:+d} %" if least == most else f"{least:+d} to {most:+d} %"
    stages = "stage" if len(chosen) == 1 else "stages"
    return f"{stages} {compact_ranges(chosen.tolist())} ({amount})"


def _repeated(letter: str, count: int) -> str:
    return letter * count if count <= 1 else f"{letter}*{count}"
