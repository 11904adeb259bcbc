"""What the sample of a run answers for it: whatever is asked about single actions.

Which schedule ran, the distributions of the times of actions, the predictions of improvements, and what ranks did at
single moments need actions and spans of which a large run has more than fit into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.prediction.improvements import predict_other_schedules
from stagescope.analysis.step_results import find_outliers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import polars as pl

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.vocabulary.steps import StepRanges

LEARNED = ("actions", "basis")
"""Results of Intermediates from which is learned what is usual; the costs of the actions are another one."""
ANSWERED = ("ledger", "ideal", "outliers", "predictions", "step_chain", "chained_losses")
"""Results of Intermediates that follow from these, and that the analysis of ranges does not depend on."""
RESULTS = (*LEARNED, *ANSWERED)


class Reference(NamedTuple):
    """What is known of the sample.

    `steps` are its steps, and the run has `ratio` times as many. `spans` are those of these steps and those without a
    step, and `results` returns the RESULTS by name, which take as much memory as these spans. `pipelines` has its ranks
    and their pipelines. Unless that is all, `others` are what is needed of the spans of the others (model/outlines.py).
    """

    steps: StepRanges
    ratio: float
    spans: pl.DataFrame
    results: Callable[[], Mapping[str, object]]
    pipelines: pl.DataFrame
    others: pl.DataFrame | None = None


def results_of(known: Intermediates, counted: Collection[int]) -> dict[str, object]:
    """Return what is ANSWERED by a sample; `counted` are the steps in the totals."""
    predictions = predict_other_schedules(known.actions, known.basis, known.ideal.schedule, counted)
    known = known.with_results(predictions=predictions, outliers=find_outliers(known, counted))
    return {name: getattr(known, name) for name in ANSWERED}
