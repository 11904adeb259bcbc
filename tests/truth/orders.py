"""The orders of six schedules, written from their papers and reference programs.

An order is a list of words per pipeline rank: `F0.3` is the forward of micro-batch 3 on virtual stage 0, `B` a full
backward, `I` and `W` its two parts, and `F0.3+B3.1` an overlapped pair. Nothing here is shared with
stagescope.schedules, which these runs are meant to check.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

Order = list[list[str]]


class Size(NamedTuple):
    """`ranks` of one pipeline, each with `chunks` virtual stages, and `microbatches` per step."""

    ranks: int
    microbatches: int
    chunks: int = 1


def linear(size: Size) -> list[list[int]]:
    """Return the virtual stages of each rank where chunk c of rank r is stage c x ranks + r."""
    return [[chunk * size.ranks + rank for chunk in range(size.chunks)] for rank in range(size.ranks)]


def v_shape(size: Size) -> list[list[int]]:
    """Return the virtual stages of each rank where the second chunks run back to the first rank."""
    return [[rank, 2 * size.ranks - 1 - rank] for rank in range(size.ranks)]


def gpipe(size: Size) -> Order:
    """Return GPipe (arXiv 1811.06965): all forwards, then all backwards."""
    each = range(size.microbatches)
    return [[f"F{rank}.{m}" for m in each] + [f"B{rank}.{m}" for m in each] for rank in range(size.ranks)]


def one_f_one_b(size: Size) -> Order:
    """Return 1F1B (PipeDream-Flush, arXiv 2006.09503): warm-up of p-1-r forwards, then one of each in turn."""
    return [_in_turn(size, rank, "B") for rank in range(size.ranks)]


def _in_turn(size: Size, rank: int, backward: str) -> list[str]:
    warmup = min(size.ranks - 1 - rank, size.microbatches)
    row = [f"F{rank}.{m}" for m in range(warmup)]
    for m in range(size.microbatches):
        row += [f"F{rank}.{warmup + m}"] if warmup + m < size.microbatches else []
        row.append(f"{backward}{rank}.{m}")
    return row


def zb_h1(size: Size) -> Order:
    """Return ZB-H1 (arXiv 2401.10241, section 3.1): 1F1B whose rank r runs W r micro-batches late."""
    order = []
    for rank in range(size.ranks):
        row: list[str] = []
        for word in _in_turn(size, rank, "I"):
            row.append(word)
            done = int(word.split(".")[1])
            if word.startswith("I") and done >= rank:
                row.append(f"W{rank}.{done - rank}")
        last = range(max(size.microbatches - rank, 0), size.microbatches)
        order.append(row + [f"W{rank}.{m}" for m in last])
    return order


def interleaved(size: Size) -> Order:
    """Return interleaved 1F1B (arXiv 2104.04473, section 2.2), with the warm-up of Megatron-LM."""
    total = size.microbatches * size.chunks
    order = []
    for rank in range(size.ranks):
        warmup = min(2 * (size.ranks - 1 - rank) + (size.chunks - 1) * size.ranks, total)
        row = [_chunk_word(size, rank, "F", k) for k in range(warmup)]
        for k in range(total):
            row += [_chunk_word(size, rank, "F", warmup + k)] if warmup + k < total else []
            row.append(_chunk_word(size, rank, "B", k))
        order.append(row)
    return order


def _chunk_word(size: Size, rank: int, kind: str, k: int) -> str:
    """Return the k-th forward or backward of a rank: p micro-batches of one chunk, then the same of the next."""
    group, within = divmod(k, size.ranks * size.chunks)
    chunk, m = divmod(within, size.ranks)
    chunk = chunk if kind == "F" else size.chunks - 1 - chunk
    return f"{kind}{chunk * size.ranks + rank}.{group * size.ranks + m}"


class _Row:
    """The row of one rank with two chunks, numbering the micro-batches of each kind and chunk as they come."""

    def __init__(self, size: Size, rank: int) -> None:
        self.words: list[str] = []
        self.stages = (rank, 2 * size.ranks - 1 - rank)
        self.next: Counter[tuple[str, int]] = Counter()
        self.owed: deque[str] = deque()

    def word(self, kind: str, chunk: int) -> str:
        # A full backward and its first part continue the same numbering.
        number = ("F" if kind == "F" else "B", chunk)
        self.next[number] += 1
        return f"{kind}{self.stages[chunk]}.{self.next[number] - 1}"

    def run(self, *parts: tuple[str, int]) -> None:
        self.words += [self.word(kind, chunk) for kind, chunk in parts]

    def pair(self, forward: int, backward: int) -> None:
        self.words.append(f"{self.word('F', forward)}+{self.word('B', backward)}")

    def split(self, chunk: int) -> None:
        """Run an input gradient and owe its weight gradient."""
        word = self.word("I", chunk)
        self.words.append(word)
        self.owed.append("W" + word[1:])

    def weight(self, chunk: int | None = None) -> None:
        """Run the oldest weight gradient that is owed, of one chunk or of any."""
        owed = [word for word in self.owed if chunk is None or word.startswith(f"W{self.stages[chunk]}.")]
        self.words.append(owed[0])
        self.owed.remove(owed[0])


def zbv(size: Size) -> Order:
    """Return the V-shaped zero bubble schedule (arXiv 2405.15362), in the order of torch's ScheduleZBVZeroBubble."""
    order = []
    for rank in range(size.ranks):
        row, after = _Row(size, rank), size.ranks - rank
        row.run(*[("F", 0)] * (2 * after - 1))
        row.run(*[("F", 1), ("F", 0)] * rank)
        for _ in range(after):
            row.run(("F", 1))
            row.split(1)
            row.weight()
        while row.next["F", 1] < size.microbatches:
            row.run(*[("F", 0)] * (row.next["F", 0] < size.microbatches))
            row.split(0)
            row.weight()
            row.run(("F", 1))
            row.split(1)
            row.weight()
        for _ in range(rank):
            row.split(0)
            row.split(1)
        for _ in range(after):
            row.split(0)
            row.weight(0)
        for chunk in (1, 0):
            while any(word.startswith(f"W{row.stages[chunk]}.") for word in row.owed):
                row.weight(chunk)
        order.append(row.words)
    return order


def dualpipev(size: Size) -> Order:
    """Return DualPipeV in the eight steps of deepseek-ai/DualPipe, dualpipe/dualpipev.py."""
    order = []
    for rank in range(size.ranks):
        row, after = _Row(size, rank), size.ranks - rank - 1
        row.run(*[("F", 0)] * (2 * after))
        row.run(*[("F", 0), ("F", 1)] * (rank + 1))
        for _ in range(after):
            row.split(1)
            row.weight()
            row.run(("F", 1))
        for turn in range(size.microbatches - 2 * size.ranks + rank + 1):
            if turn == 0 and after == 0:
                row.run(("F", 0), ("B", 1))
            else:
                row.pair(0, 1)
            row.pair(1, 0)
        for _ in range(after):
            row.run(("B", 1))
            row.pair(1, 0)
        _dualpipev_end(row, rank, after)
        order.append(row.words)
    return order


def _dualpipev_end(row: _Row, rank: int, after: int) -> None:
    """Add steps 6 to 8; from the middle of step 6, backwards are split."""
    half = (rank + 1) // 2
    for turn in range(rank + 1):
        for chunk in (1, 0):
            is_split = turn > half or (turn == half and (rank % 2 == 1 or chunk == 0))
            if is_split:
                row.split(chunk)
            else:
                row.run(("B", chunk))
    for _ in range(after):
        row.weight()
        row.split(0)
    while row.owed:
        row.weight()


SCHEDULES = {
    "gpipe": (gpipe, linear),
    "1f1b": (one_f_one_b, linear),
    "interleaved": (interleaved, linear),
    "zb-h1": (zb_h1, linear),
    "zb-v": (zbv, v_shape),
    "dualpipev": (dualpipev, v_shape),
}
"""Each schedule: its order, and which virtual stages a rank has."""
