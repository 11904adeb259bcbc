import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.cli.cost_words import NAMES, parse_costs
from stagescope.schedules.costs import Costs
from stagescope.vocabulary.errors import UsageError

UNIT = 1_000_000


def test_numbers_without_units_are_relative_and_may_differ_per_stage() -> None:
    given_costs = parse_costs("F=1.2:0.7, b=2,FB=3", "0.1")
    assert given_costs.in_cost_units
    assert given_costs.costs == Costs(
        forward=[1_200_000, 700_000], backward=2 * UNIT, overlapped=3 * UNIT, hop=UNIT // 10
    )


def test_numbers_with_units_are_times() -> None:
    costs, in_cost_units = parse_costs("F=300us,B=2.5ms,I=.001s,W=7ns,O=4µs", "")
    assert not in_cost_units
    assert costs == Costs(
        forward=300_000, backward=2_500_000, backward_input=UNIT, backward_weight=7, optimizer=4_000
    )


def test_defaults_to_unit_costs() -> None:
    assert parse_costs("", "") == (Costs(forward=UNIT), True)


def test_zero_needs_no_unit() -> None:
    assert parse_costs("F=300us,W=0", "0").costs == Costs(forward=300_000, backward_weight=0)


@pytest.mark.parametrize(
    ("cost", "hop"),
    [("F", ""), ("F=", ""), ("F=-1", ""), ("X=1", ""), ("F=1h", ""), ("F=1,F=2", ""), ("F=1,B=2ms", ""),
     ("F=1", "1ms"), ("B=2ms", ""), ("", "1ms"), ("F=1:", ""), ("F=1e3", "")],
)  # fmt: skip
def test_rejects_invalid_text_as_usage_error(cost: str, hop: str) -> None:
    with pytest.raises(UsageError):
        parse_costs(cost, hop)


@given(st.text("FBIWOfb=,:.0123456789munsµ ", max_size=12), st.text("0123456789.ms", max_size=5))
def test_any_text_is_valid_or_a_usage_error(cost: str, hop: str) -> None:
    try:
        parse_costs(cost, hop)
    except UsageError as error:
        assert str(error)  # noqa: PT017 - either outcome is right, anything else is not


@given(st.sampled_from(sorted(NAMES)), st.decimals(0, 10_000, places=3))
def test_keeps_every_digit(name: str, amount) -> None:
    costs = parse_costs(f"{name}={amount}", "").costs
    assert getattr(costs, NAMES[name]) == int(amount * UNIT)
