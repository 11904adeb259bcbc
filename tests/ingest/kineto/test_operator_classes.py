"""Classification of operators."""

import polars as pl
import pytest

from stagescope.ingest.kineto.operator_classes import (
    BACKWARD,
    HANDLING,
    LOSS,
    LOSS_PRELUDE,
    OTHER,
    RECEIVE,
    SEED,
    SEND,
    SPLITTING,
    operator_class,
    settle_operators,
)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", BACKWARD),
        ("AddmmBackward0", OTHER),
        ("c10d::send", SEND),
        ("c10d::recv_", RECEIVE),
        ("c10d::recv_any_source_", RECEIVE),
        ("c10d::allreduce_", OTHER),
        ("aten::mse_loss", LOSS),
        ("aten::nll_loss_nd", LOSS),
        ("aten::kl_div", LOSS),
        ("aten::mse_loss_backward", OTHER),
        ("aten::detach", HANDLING),
        ("aten::tensor_split", SPLITTING),
        ("", OTHER),
    ],
)
def test_operators_are_classified_by_name(name, what):
    assert operator_class(name) == what


def settled(*rows):
    columns = list(zip(*((what, 1, start, end) for what, start, end in rows), strict=True))
    schema = {"what": pl.Int8, "thread": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    table = pl.DataFrame(dict(zip(schema, columns, strict=True)), schema)
    return settle_operators(table).select("what", "start_ns", "end_ns").rows()


def test_preludes_of_a_loss_or_backward_get_its_class():
    assert settled((LOSS_PRELUDE, 0, 5), (LOSS, 9, 20)) == [(LOSS, 0, 20), (LOSS, 9, 20)]
    assert settled((SEED, 0, 5), (BACKWARD, 9, 20)) == [(BACKWARD, 0, 5), (BACKWARD, 9, 20)]


def test_the_same_operators_elsewhere_have_no_special_class():
    assert settled((LOSS_PRELUDE, 0, 5), (OTHER, 6, 8), (SEED, 9, 10), (OTHER, 11, 12)) == [
        (OTHER, 0, 5), (OTHER, 6, 8), (OTHER, 9, 10), (OTHER, 11, 12),
    ]  # fmt: skip


def test_nested_operators_are_dropped_in_any_order():
    assert settled((OTHER, 5, 6), (SEND, 7, 8), (OTHER, 0, 10)) == [(OTHER, 0, 10), (SEND, 7, 8)]
