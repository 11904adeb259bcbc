"""Alarms about changes and conditions, from the values of steps."""

from __future__ import annotations

import numpy as np
import pytest

from stagescope.analysis.watching.alarms import Alarms
from stagescope.analysis.watching.step_values import QUANTITIES, StepValues, Subject
from stagescope.vocabulary.conditions import parse_lasting_condition

ITERATION = Subject("iteration")
LOADING = Subject("part", "data_loading")
LINK = Subject("link", rank=1, peer=2, direction="forward")
FIRST, LAST, STEPS = 80, 130, 260


def ranks(count=8):
    return [Subject("rank", rank=rank) for rank in range(count)]


def steps(changed, factor, common=None, seed=4):
    """Yield the values of a training in which some subjects take longer from step FIRST to step LAST."""
    generator = np.random.default_rng(seed)
    for step in range(STEPS):
        values = dict.fromkeys(ranks(), 400000000.0) | {ITERATION: 1e9, LOADING: 2e7, LINK: 1e6}
        values = {name: value * np.exp(0.01 * generator.standard_normal()) for name, value in values.items()}
        if FIRST <= step <= LAST:
            values |= {name: values[name] * factor for name in changed}
        if common is not None:
            values |= {name: values[name] * common[step] for name in ranks()}
        yield StepValues(step, values)


def events(changed, factor, alarms=None, **options):
    alarms = alarms or Alarms()
    found = []
    for values in steps(changed, factor, **options):
        found += [(values.step, alarm.number, alarm.end_step) for alarm in alarms.add(values)]
    return alarms, found


def test_a_slow_rank_is_one_alarm_that_begins_and_ends():
    alarms, found = events([ranks()[3], ITERATION], 1.2)
    (alarm,) = alarms.all
    assert [change.subject for change in alarm.changes] == [ranks()[3], ITERATION]
    assert alarm.step == alarm.changes[0].step == FIRST
    assert abs(alarm.changes[0].size - 0.2) < 0.03
    assert abs(alarm.changes[0].usual - 4e8) < 1e7
    assert alarm.found_step <= FIRST + 10
    assert LAST < alarm.end_step <= LAST + 10
    assert [number for _, number, _ in found] == [1] * len(found)
    assert alarms.active == []


def test_a_more_specific_change_was_not_found_before_it_began():
    later, slow, alarms, found_steps = FIRST + 4, ranks()[3], Alarms(), []
    for step, values in steps([ITERATION, LOADING], 1.5):
        factor = 1.5 if later <= step <= LAST else 1.0
        found = alarms.add(StepValues(step, values | {slow: values[slow] * factor}))
        found_steps += [alarm.found_step for alarm in found if alarm.end_step is None]
    (alarm,) = alarms.all
    assert (alarm.step, alarm.changes[0].subject) == (FIRST, slow)
    assert found_steps[0] < found_steps[-1] == alarm.found_step
    assert later <= alarm.changes[0].step < alarm.found_step <= later + 10


@pytest.mark.parametrize("seed", range(8))
def test_who_began_to_watch_later_states_the_same_change(seed):
    planted = list(steps([ranks()[3], ITERATION], 1.2, common=np.linspace(0.8, 1.0, STEPS), seed=seed))
    whole, late = Alarms(), Alarms()
    for values in planted[:LAST]:
        whole.add(values)
    for values in planted[FIRST - 45 : LAST]:
        late.add(values)
    assert [each.changes for each in late.all] == [each.changes for each in whole.all]
    assert len(whole.all) == 1


def test_a_second_change_of_the_same_rank_is_a_second_alarm():
    alarms = Alarms()
    for repeat in range(2):
        for values in steps([ranks()[3]], 1.2, seed=repeat):
            alarms.add(values._replace(step=values.step + repeat * STEPS))
    assert [alarm.step for alarm in alarms.all] == [FIRST, STEPS + FIRST]


def test_what_all_ranks_have_in_common_is_no_alarm_about_a_rank():
    common = np.where(np.arange(STEPS) >= FIRST, 1.3, 1.0)
    alarms, _ = events([], 1.0, common=common)
    assert alarms.all == []


def test_links_and_causes_are_named_with_their_change():
    alarms, _ = events([LINK], 1.5)
    assert alarms.all[0].changes[0].subject == LINK
    alarms, _ = events([LOADING], 6.0)
    change = alarms.all[0].changes[0]
    assert change.subject == LOADING
    assert abs(change.size - 0.1) < 0.01  # of the iteration


def test_conditions_hold_for_so_many_steps_in_a_row_and_unknown_values_count_neither_way():
    condition = parse_lasting_condition("bubble>0.3 for 3 steps", QUANTITIES, "--alert")
    alarms = Alarms([condition], least_change=0)
    bubbles = [0.4, 0.4, 0.2, 0.4, None, 0.5, 0.6, 0.7, 0.1, 0.1]
    for step, bubble in enumerate(bubbles):
        values = {} if bubble is None else {Subject("bubble"): bubble}
        alarms.add(StepValues(step, values))
    (alarm,) = alarms.all
    assert (alarm.found_step, alarm.end_step, alarm.value) == (6, 8, 0.6)


def test_a_condition_may_last_longer_than_the_history():
    condition = parse_lasting_condition("bubble>0.3 for 500 steps", QUANTITIES, "--alert")
    alarms = Alarms([condition])
    for step in range(7, 600):
        alarms.add(StepValues(step, {Subject("bubble"): 0.4}))
    (alarm,) = alarms.all
    assert (alarm.step, alarm.found_step) == (7, 506)
    alarms.restart()
    assert (alarms.active, alarm.end_step) == ([], 599)


def test_the_numbers_of_a_change_are_those_of_its_values():
    alarms = Alarms()
    for values in steps([ranks()[3]], 1.5, common=np.where(np.arange(STEPS) >= FIRST, 1.2, 1.0)):
        alarms.add(values)
    change = alarms.all[0].changes[0]
    assert change.subject == ranks()[3]
    assert abs(change.now - 1.8 * 4e8) < 2e7
    # Not to the last bit: logarithms and exponentials differ there between kinds of processors.
    assert change.size == pytest.approx(change.now / change.usual - 1, rel=1e-12)


def test_a_cause_is_a_fraction_of_the_iteration():
    values = StepValues(0, {ITERATION: 2e9, LOADING: 5e8})
    assert values.quantity("data_loading") == 0.25
    assert values.quantity("iteration") == 2e9
    assert values.quantity("straggler") is None
    assert StepValues(0, {LOADING: 1.0}).quantity("data_loading") is None


def test_a_level_that_was_not_higher_in_its_first_steps_is_no_alarm_until_it_is():
    """One long step and three usual ones come before the rise, and may be taken for a part of it."""
    for seed in range(40):
        generator, alarms, stated = np.random.default_rng(seed), Alarms(), []
        for step in range(2 * FIRST):
            own = 3.0 if step == FIRST else 1.8 if step > FIRST + 3 else 0.95 if step > FIRST else 1.0
            value = 1e8 * own * (1 + 0.1 * generator.standard_normal())
            found = alarms.add(StepValues(step, {ITERATION: 9e8 + value, LOADING: value}))
            stated += [change.size for alarm in found for change in alarm.changes]
        assert stated, seed
        assert min(stated) > 0.01, (seed, stated)


def test_a_rank_that_is_left_behind_by_the_others_has_a_relative_change():
    others = ranks()[:3] + ranks()[4:]
    alarms, _ = events(others, 0.75)
    alarm = alarms.all[0]
    assert alarm.changes[0].subject == ranks()[3]
    assert abs(alarm.changes[0].size) < 0.03
    assert abs(alarm.changes[0].relative_size - 1 / 3) < 0.05
    assert Alarms().history.is_relative("rank") is False
