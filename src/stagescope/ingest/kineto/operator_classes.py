"""Classify operators by name, as far as needed to recognize actions.

Sources: torch 2.13.0. The autograd engine names its operators (torch/csrc/autograd/engine.cpp). Before it starts,
`torch.autograd.backward` creates the gradient of a loss with `ones_like`. Losses of torch.nn.functional broadcast their
arguments first. Schedules detach the tensors that they send, and split the batch of a step
(torch/distributed/pipelining/stage.py and microbatch.py). A backward of the last stage ends by detaching the stage's
outputs in place (stage.py, `backward_one_chunk`).
"""

from __future__ import annotations

import polars as pl

OTHER, BACKWARD, SEND, RECEIVE, LOSS, LOSS_PRELUDE, SEED, HANDLING, CLOSING, SPLITTING, PACKING, CALL = range(
    12
)
"""HANDLING and SPLITTING are executed by the schedule and belong to no action; SPLITTING begins a step. LOSS_PRELUDE
and SEED exist only until settle_operators. CLOSING belongs to an action
like OTHER, and is the last operator of a backward. PACKING makes a tensor from bytes, as for an object that is sent.
CALL describes a collective, and counts as OTHER once its arguments were read."""

HANDLINGS = (HANDLING, SPLITTING)

EXACT = {
    "aten::broadcast_tensors": LOSS_PRELUDE,
    "aten::ones_like": SEED,
    "aten::detach": HANDLING,
    "detach": HANDLING,
    "aten::tensor_split": SPLITTING,
    "aten::set_": PACKING,
    "aten::detach_": CLOSING,
    "c10d::send": SEND,
    "record_param_comms": CALL,
}


def operator_class(name: str) -> int:
    """Return the class of an operator.

    >>> operator_class("autograd::engine::evaluate_function: AddmmBackward0") == BACKWARD
    True
    """
    if name in EXACT:
        return EXACT[name]
    if name.startswith("autograd::engine::evaluate_function"):
        return BACKWARD
    if name.startswith("c10d::recv"):
        return RECEIVE
    is_loss = name.startswith("aten::") and "_backward" not in name and ("_loss" in name or "kl_div" in name)
    return LOSS if is_loss else OTHER


def settle_operators(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the operators in time order, without nested ones of class OTHER; preludes get the class they lead to.

    Columns as in tables.TABLES. Nested operators of any other class are kept.
    """
    ordered = operators.sort("start_ns", "end_ns", descending=[False, True])
    what, next_what = pl.col("what"), pl.col("what").shift(-1)
    leads_to_loss = (what == LOSS_PRELUDE) & (next_what == LOSS)
    leads_to_backward = (what == SEED) & (next_what == BACKWARD)
    settled = ordered.with_columns(
        what=pl.when(leads_to_loss)
        .then(LOSS)
        .when(leads_to_backward)
        .then(BACKWARD)
        .when(what.is_in([LOSS_PRELUDE, SEED]))
        .then(OTHER)
        .otherwise("what")
        .cast(pl.Int8),
        end_ns=pl.when(leads_to_loss).then(pl.col("end_ns").shift(-1)).otherwise("end_ns"),
    )
    before_ns = pl.col("end_ns").cum_max().shift(1).over("thread")
    is_inner = (pl.col("end_ns") <= before_ns).fill_null(value=False)
    return settled.filter(~is_inner | (what != OTHER))
