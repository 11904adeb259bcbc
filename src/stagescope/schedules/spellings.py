"""The names of the catalog, under which every framework's spelling of a schedule is known."""

from __future__ import annotations

from stagescope.schedules.catalog import NAMES

SPELLINGS: dict[str, str | None] = {
    "": None,
    # pp_info and MindSpeed's --schedules-method, which says None for 1F1B
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
"""What frameworks and callers say, in lower case."""


def known_schedule(spelled: str | None) -> str | None:
    """Return the name of a schedule in the catalog, None for none and for a spelling that is none's."""
    return SPELLINGS.get((spelled or "").lower())


def is_spelling(spelled: str | None) -> bool:
    """Tell whether a schedule, or that there is none of its own, can be said like that."""
    return (spelled or "").lower() in SPELLINGS
