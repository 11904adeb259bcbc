"""Timelines drawn as text, so that a test reads like the paper's figure.

One line per rank, one word per slot of `cell_ns`: ``F0`` is micro-batch 0 forward on the stage of that line,
``-`` continues the action before it, ``.`` is idle. ``F0`` may carry a stage of its own, ``F2.0``.
"""

from __future__ import annotations

import re

import polars as pl

from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import KINDS, label

CELL = re.compile(r"(?P<letter>[FBIWOL])(?:(?P<stage>\d+)\.)?(?P<microbatch>\d+)$")
BY_LETTER = {kind.letter: kind for kind in KINDS}


def timeline_from_text(text: str, *, cell_ns: int = 1_000, step: int = 0, origin_ns: int = 0) -> Timeline:
    """Return the Timeline that `text` draws, with one stage per rank unless an action names its stage."""
    rows: list[dict[str, object]] = []
    lines = [line.split() for line in map(str.strip, text.splitlines()) if line]
    for rank, words in enumerate(lines):
        for slot, word in enumerate(words):
            start_ns = origin_ns + slot * cell_ns
            if match := CELL.match(word):
                kind = BY_LETTER[match["letter"]]
                stage = int(match["stage"]) if match["stage"] else rank
                rows.append(
                    {"rank": rank, "lane": kind.lane, "kind": kind.name, "step": step, "stage": stage,
                     "chunk": 0, "microbatch": int(match["microbatch"]),
                     "start_ns": start_ns, "end_ns": start_ns + cell_ns}
                )  # fmt: skip
            elif word == "-":
                rows[-1]["end_ns"] = start_ns + cell_ns
            elif word != ".":
                raise ValueError(f"rank {rank}, slot {slot}: expected F0, F0.0, '-' or '.', got {word!r}")
    timeline = empty_timeline()
    spans = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    ranks = conform(pl.DataFrame({"rank": range(len(lines)), "world_size": [len(lines)] * len(lines)}), RANKS)
    return Timeline(spans, ranks, timeline.steps, timeline.clocks, timeline.diagnostics)


def timeline_to_text(timeline: Timeline, *, cell_ns: int = 1_000) -> str:
    """Return a Timeline as a drawing; actions carry their stage if it differs from the rank."""
    origin_ns = timeline.spans["start_ns"].min()
    width = (timeline.spans["end_ns"].max() - origin_ns) // cell_ns
    lines = []
    for (rank,), spans in sorted(timeline.spans.group_by("rank")):
        cells = ["."] * width
        for span in spans.iter_rows(named=True):
            first, last = ((span[name] - origin_ns) // cell_ns for name in ("start_ns", "end_ns"))
            text = label(span["kind"], span["stage"], span["microbatch"])
            cells[first:last] = [
                text.replace(f"{rank}.", "") if span["stage"] == rank else text,
                *"-" * (last - first - 1),
            ]
        lines.append(" ".join(cells))
    return "\n".join(lines)
