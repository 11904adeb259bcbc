"""The orders of reference implementations under tests/data/golden, and orders as text, in the notation of `Action`."""

from __future__ import annotations

import json

from places import DATA

GOLDEN = DATA / "golden"


def golden_cases(name):
    """Return (ranks, micro-batches, order as words) for each case of a golden file."""
    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return [
        (case["pp"], case["n_mb"], {int(r): words for r, words in case["orders"].items()}) for case in cases
    ]


def words(order):
    """Return an order as words, rank by rank."""
    return {rank: [str(action) for action in actions] for rank, actions in order.items()}


def order_text(order):
    """Return the text of an order file, one line per rank."""
    return "".join(" ".join(row) + "\n" for _, row in sorted(words(order).items()))
