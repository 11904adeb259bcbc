"""What one range of steps answers for the whole run: whatever is asked about single actions.

Which schedule ran, the distributions of the times of actions, the predictions of improvements, and what ranks did at
single moments need actions and spans of which a large run has more than fit into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.prediction.improvements import predict_other_schedules
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stagescope.analysis.completeness.missing_ranks import MissingRanks

OF_REFERENCE = ("basis", "ideal", "predictions")
"""Results of Intermediates that one range answers for the run."""
RESULTS = ("actions", "ledger", *OF_REFERENCE, "step_chain")
"""Results of Intermediates of which at least a part is used."""


class Reference(NamedTuple):
    """What is known of that range.

    `spans` are those of its steps and those without a step, and `results` returns the RESULTS by name, which take as
    much memory as these spans.
    """

    spans: pl.DataFrame
    missing: MissingRanks
    results: Callable[[], Mapping[str, object]]


def as_reference(known: Intermediates) -> Intermediates:
    """Return of a range of steps what the run asks it for; the rest takes much memory.

    The spans of the steps next to the range, of which only a part is there, are left out.
    """
    spans = known.timeline.spans.filter(pl.col("step").is_null() | is_in_steps(known.steps))
    results = {name: getattr(known, name) for name in (*RESULTS, "missing") if name != "predictions"}
    reduced = Intermediates(known.timeline.with_spans(spans), known.windows, None, known.steps)
    return reduced.with_results(**results)


def results_of(known: Intermediates, counted: Collection[int]) -> dict[str, object]:
    """Return the RESULTS of what as_reference returned; `counted` are the steps in the totals."""
    predictions = predict_other_schedules(known.actions, known.basis, known.ideal.schedule, counted)
    known = known.with_results(predictions=predictions)
    return {name: getattr(known, name) for name in RESULTS}
