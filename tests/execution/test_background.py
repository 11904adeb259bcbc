"""Workers run items while the caller does something else; whatever goes wrong, they end with the executor."""

from __future__ import annotations

import multiprocessing

import pytest

from execution_work import limit_of_ranks, refused, squared
from stagescope.execution import executor_for, in_background
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force


def test_results_are_there_when_they_are_asked_for():
    with limits_in_force(checked_limits({"ranks": 77})), executor_for(2) as workers:
        with in_background(workers, squared, range(5)) as results:
            assert next(results) == 0
            assert list(results) == [1, 4, 9, 16]
        with in_background(workers, limit_of_ranks, [0]) as results:
            assert list(results) == [77]
    assert multiprocessing.active_children() == []


def test_an_error_of_an_item_is_raised_where_its_result_is_needed():
    with executor_for(2) as workers, in_background(workers, refused, ["a.sscope"]) as results:
        multiplied = 2 * 3
        with pytest.raises(InputError, match="it is odd"):
            next(results)
    assert multiplied == 6


def test_items_are_given_up_if_the_caller_fails():
    def work():
        with executor_for(2) as workers, in_background(workers, squared, iter(taken, None)):
            raise KeyboardInterrupt

    numbers = iter(range(1_000_000))

    def taken():
        return next(numbers)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert next(numbers) < 1_000
    assert multiprocessing.active_children() == []
