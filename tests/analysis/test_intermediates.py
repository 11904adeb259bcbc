"""Intermediate results are in memory no longer than they are used."""

import gc
import weakref

from planted_runs import Shape, random_times, run
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.step_results import find_outliers


def test_results_that_nothing_uses_are_freed_without_the_garbage_collector():
    known = intermediates_of(run(random_times(Shape(pipelines=2, steps=6))))
    assert known.sample is known
    assert known.usual is None
    for name in ("learned", "ledger", "ideal", "step_chain", "chained_losses", "iterations", "critical_path"):
        getattr(known, name)
    find_outliers(known, range(6))
    reference = weakref.ref(known.with_results(sample_ratio=2.0)), weakref.ref(known)
    gc.disable()
    try:
        del known
        assert [each() for each in reference] == [None, None]
    finally:
        gc.enable()
