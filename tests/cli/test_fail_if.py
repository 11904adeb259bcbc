"""Conditions on a report."""

import pytest

from explained_runs import explained
from stagescope.analysis import build_explained_report
from stagescope.cli.fail_if import QUANTITIES, judge, parse_condition, quantities_text
from stagescope.model import empty_timeline
from stagescope.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    ("text", "limit"),
    [("bubble>0.3", 0.3), ("bubble >= 30%", 0.3), ("bubble<.25", 0.25), ("step>120ms", 120e6),
     ("longest_step<=1.5s", 1.5e9), ("step > 10us", 10_000), ("step>10µs", 10_000)],
)  # fmt: skip
def test_numbers_have_the_unit_of_their_quantity(text, limit):
    assert parse_condition(text).limit == limit


@pytest.mark.parametrize(
    "text", ["", "bubble", "bubble=0.3", "bubble>", "bubble>x", "0.3<bubble", "nothing>1", "bubble>0.3>0.2"]
)
def test_rejects_a_malformed_condition_and_lists_the_quantities(text):
    with pytest.raises(UsageError) as error:
        parse_condition(text)
    assert all(name in error.value.hint for name in QUANTITIES)


@pytest.mark.parametrize("text", ["bubble>3ms", "step>5", "step>5%", "jitter>1s"])
def test_rejects_a_unit_that_the_quantity_does_not_have(text):
    with pytest.raises(UsageError, match="expected a number with"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "fails"),
    [("bubble>0.27", True), ("bubble>0.28", False), ("bubble<0.28", True), ("schedule_bubble>=27%", True),
     ("jitter>0", False), ("jitter>=0", True), ("step>330ms", False), ("step>=330ms", True), ("longest_step<1s", True)],
)  # fmt: skip
def test_judges_a_condition_by_the_report(text, fails):
    (judgment,) = judge(explained(), [parse_condition(text)])
    assert judgment.fails is fails
    assert judgment.text.startswith(f"{text} {'holds' if fails else 'does not hold'}: ")


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_condition_on_an_unknown_quantity_fails(name):
    unit = "1ms" if QUANTITIES[name].is_time else "0.5"
    (judgment,) = judge(build_explained_report(empty_timeline()), [parse_condition(f"{name}>{unit}")])
    assert judgment.fails
    assert f": {name} is unknown: no step with a forward or backward action was recorded" in judgment.text


def test_every_quantity_has_a_line_of_help():
    lines = quantities_text(indent=2).splitlines()
    assert [line.split()[0] for line in lines] == list(QUANTITIES)
