"""Changes, and what is accepted as one."""

import pytest

from stagescope.analysis.prediction.changes import (
    EqualStages,
    FreeTransfers,
    OtherSchedule,
    Slower,
    combinations_of,
)
from stagescope.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Slower(factor=0.9, stage=3), "stage 3 10 % faster"),
        (Slower(factor=1.125, rank=0, kind="forward"), "rank 0 kind forward 12.5 % slower"),
        (Slower(factor=3.0), "everything 200 % slower"),
        (Slower(factor=12.0, rank=1), "rank 1 takes 12x as long"),
        (EqualStages(), "all stages equal"),
        (FreeTransfers(), "transfers take no time"),
        (OtherSchedule("zb-h1"), "schedule zb-h1"),
    ],
)
def test_every_change_has_a_description(change, text):
    assert str(change) == text


@pytest.mark.parametrize("factor", [0, -0.5, float("nan"), float("inf")])
def test_factor_must_be_a_positive_number(factor):
    with pytest.raises(UsageError, match="expected a positive number"):
        Slower(factor=factor)


def test_unknown_kind_is_an_error_that_lists_the_kinds():
    with pytest.raises(UsageError, match="'loss'") as error:
        Slower(factor=2.0, kind="loss")
    assert "backward_weight" in error.value.hint


def test_one_change_several_changes_and_changes_made_together():
    one, other = EqualStages(), FreeTransfers()
    assert combinations_of(one) == [(one,)]
    assert combinations_of([one, other]) == [(one,), (other,)]
    assert combinations_of([(one, other), one]) == [(one, other), (one,)]
    assert combinations_of([]) == []


@pytest.mark.parametrize("given", ["zb-h1", ["zb-h1"], 0.9, None, {"stage": 3}, [(EqualStages(), "zb-h1")]])
def test_anything_else_is_a_type_error(given):
    with pytest.raises(TypeError, match="expected one change or several"):
        combinations_of(given)
