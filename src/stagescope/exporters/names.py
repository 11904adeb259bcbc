"""Names of slices in other viewers, and their colors where the viewer supports it.

Perfetto colors a slice by a hash of its name without numbers and the blank before them, and accepts no other color.
The words below were chosen so that the hues of any two kinds differ by at least 12 degrees
(tests/exporters/test_names.py computes them). Catapult accepts `cname`, one of its reserved color names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.kinds import ALL_RECEIVES, KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Look(NamedTuple):
    """The word that a viewer shows for one kind of slice, and catapult's name of its color."""

    word: str
    cname: str


LOOKS: Mapping[str, Look] = {
    "forward": Look("forward", "thread_state_running"),
    "backward": Look("backward", "thread_state_runnable"),
    "backward_input": Look("dgrad", "terrible"),
    "backward_weight": Look("wgrad", "rail_animation"),
    "optimizer": Look("optim", "detailed_memory_dump"),
    "send_forward": Look("send forward", "rail_load"),
    "recv_forward": Look("recv forward", "cq_build_passed"),
    "send_backward": Look("send backward", "rail_response"),
    "recv_backward": Look("recv backward", "light_memory_dump"),
    "grad_reduce": Look("reduce grads", "background_memory_dump"),
    "loss": Look("loss", "olive"),
    "other": Look("other", "generic_work"),
    "collective": Look("collective comm", "vsync_highlight_color"),
    "send": Look("send", "thread_state_iowait"),
    "recv": Look("recv", "rail_idle"),
}
"""One look per kind; a span of kind `other` is shown with its own name."""

RECEIVE_WAIT = Look("wait for data", "grey")
SEND_WAIT = Look("wait to send", "thread_state_unknown")
STEP = Look("step", "thread_state_sleeping")

WAITS: Mapping[str, Look] = {
    kind.name: RECEIVE_WAIT if kind.name in ALL_RECEIVES else SEND_WAIT for kind in KINDS
}

_LETTERS = {kind.name: kind.letter for kind in KINDS}


def look_of(*, cname: bool) -> pl.Expr:
    """Return each slice's word, or catapult's color name, by `kind` (null: a step) and `is_wait`."""
    kind = pl.col("kind").cast(pl.String)
    index = 1 if cname else 0
    actions = kind.replace_strict({name: look[index] for name, look in LOOKS.items()}, default=STEP[index])
    waits = kind.replace_strict({name: look[index] for name, look in WAITS.items()}, default=STEP[index])
    return pl.when(pl.col("is_wait")).then(waits).otherwise(actions)


def title() -> pl.Expr:
    """Return the title of every slice, such as ``forward 12``: word and micro-batch, or step."""
    number = pl.when(pl.col("kind").is_null()).then("step").otherwise("microbatch")
    numbered = pl.concat_str(look_of(cname=False), pl.lit(" ") + number.cast(pl.String), ignore_nulls=True)
    own = (pl.col("kind") == "other") & ~pl.col("is_wait") & (pl.col("name").str.len_bytes() > 0)
    return pl.when(own).then("name").otherwise(numbered)


def label() -> pl.Expr:
    """Return every slice in the notation of the field, such as ``F0.3``; null for a step.

    Only the letter if stage or micro-batch are unknown, as in vocabulary.kinds.label.
    """
    letter = pl.col("kind").cast(pl.String).replace_strict(_LETTERS, default=None, return_dtype=pl.String)
    place = pl.col("stage").cast(pl.String) + "." + pl.col("microbatch").cast(pl.String)
    return letter + place.fill_null("")
