"""How frameworks spell the schedules of the catalog."""

from __future__ import annotations

from stagescope.schedules.catalog import NAMES

SPELLINGS: dict[str, str | None] = {
    "": None,
    # pp_info and MindSpeed's --schedules-method, where None means 1F1B
    "none": None,
    "interleaved_1f1b": "interleaved",
    "interleaved-1f1b": "interleaved",
    "1f1b-interleaving": "interleaved",
    # Paddle's passes (python/paddle/distributed/passes/pipeline_scheduler_pass of 3.3.1)
    "fthenb": "gpipe",
    "eager1f1b": "eager-1f1b",
    "vpp": "interleaved",
    "zbh1": "zb-h1",
    "zbvpp": "zb-v",
    "zbv": "zb-v",
    # schedule classes of torch.distributed.pipelining 2.13
    "interleaved1f1b": "interleaved",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zb",
    "zbvzerobubble": "zb-v",
    **{name: name for name in NAMES},
}
"""Lower-case spelling to catalog name; None for a spelling that means no particular schedule."""


def known_schedule(spelled: str | None) -> str | None:
    """Return the catalog name for a spelling; None for an unknown spelling or one that names no schedule."""
    return SPELLINGS.get((spelled or "").lower())


def is_spelling(spelled: str | None) -> bool:
    """Return whether this is a known spelling of a schedule, or of no particular schedule."""
    return (spelled or "").lower() in SPELLINGS
