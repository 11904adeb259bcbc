"""What one range of steps answers for the whole run: whatever is asked about single actions.

Which schedule ran, the distributions of the times of actions, the predictions of improvements, and what ranks did at
single moments need actions and spans of which a large run has more than fit into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagescope.analysis.completeness.missing_ranks import MissingRanks
    from stagescope.analysis.intermediates import Intermediates

OF_REFERENCE = ("basis", "ideal")
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


def results_of(known: Intermediates) -> dict[str, object]:
    """Return the RESULTS of a range of steps."""
    return {name: getattr(known, name) for name in RESULTS}


def own_spans(known: Intermediates) -> pl.DataFrame:
    """Return the spans of a range of steps without those of the steps next to it, of which only a part is there."""
    return known.timeline.spans.filter(pl.col("step").is_null() | is_in_steps(known.steps))
