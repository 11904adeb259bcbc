"""Fixes: what is broken, slow or unbalanced works as well as its peers, and nothing else changes.

Each candidate (fix_candidates.py) is replayed alone, with everything else as measured, and the gain is what the
iteration loses: a slow rank of a pipeline that the others do not wait for gains nothing, and neither does a pipeline
that begins sooner than others which end as late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import OPTIMIZER
from stagescope.analysis.prediction.fix_candidates import Candidates
from stagescope.analysis.prediction.iteration_replay import prepare_iteration_replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.graph.makespan_shares import Times
    from stagescope.analysis.prediction.evidence import Candidate, Evidence
    from stagescope.analysis.prediction.iteration_replay import IterationReplay
    from stagescope.analysis.prediction.what_if import Measured

BOUND = "from nothing to all of this time can be saved"
"""What the range of a bound covers."""


def find_fixes(measured: Measured, evidence: Evidence) -> pl.DataFrame:
    """Return columns of IMPROVEMENTS for every fix, best first.

    A bound, which takes a cause away completely, ranges from no gain to that. It is placed by what it gains beyond the
    fixes of the same cause that can be attained, and after all others if its cause is not known.
    """
    others = evidence.not_replayed and evidence.not_replayed.windows
    replay = prepare_iteration_replay(measured, evidence.chain, others)
    measured_ns = replay.mean_end_ns(_costs(replay, None))
    gains_ns = _chained_gains_ns if replay.chain else _gains_ns
    found = gains_ns(replay, Candidates(measured.actions, replay, evidence).find(), measured_ns)
    attained: dict[str, float] = {}
    for each, gain_ns in found:
        if not each.is_bound:
            attained[each.cause] = max(attained.get(each.cause, 0.0), gain_ns)

    def beyond_ns(one: tuple[Candidate, float]) -> float:
        return one[1] - (attained.get(one[0].cause, 0.0) if one[0].is_bound else 0.0)

    found.sort(key=lambda one: (not one[0].is_unknown, beyond_ns(one)), reverse=True)
    step_ns = evidence.iterations.mean_ns or measured_ns
    return pl.DataFrame([_row(each, gain_ns, step_ns) for each, gain_ns in found])


def _gains_ns(
    replay: IterationReplay, candidates: Sequence[Candidate], measured_ns: float
) -> list[tuple[Candidate, float]]:
    """Return candidates with what the iteration loses: until the last pipeline ends, and after that."""
    return [
        (each, measured_ns - _replayed_ns(replay, each, measured_ns) + each.outside.after_ns)
        for each in candidates
    ]


def _chained_gains_ns(
    replay: IterationReplay, candidates: Sequence[Candidate], _: float
) -> list[tuple[Candidate, float]]:
    """Return the same where steps overlap; there, what a change removes outside of windows is a part of the gaps."""
    before_ns = _chained_ns(replay, None)
    found = []
    for each in candidates:
        outside_ns = each.outside.total_ns
        is_partial = outside_ns and not each.removes_outside
        gain_ns = outside_ns if is_partial else before_ns - _chained_ns(replay, each)
        if is_partial and each.cause == OPTIMIZER:  # no more than without any optimizer step
            without_ns = replay.chained_ns(*_costs(replay, each), OPTIMIZER) or 0.0
            gain_ns = min(gain_ns, before_ns - without_ns)
        found.append((each, gain_ns))
    return found


def _chained_ns(replay: IterationReplay, candidate: Candidate | None) -> float:
    without = candidate.cause if candidate and candidate.removes_outside else ""
    return replay.chained_ns(*_costs(replay, candidate), without) or 0.0


def _row(candidate: Candidate, gain_ns: float, step_ns: float) -> dict[str, object]:
    return {
        "change": candidate.change,
        "measured_step_ns": step_ns,
        "predicted_step_ns": step_ns - gain_ns,
        "gain_ns": gain_ns,
        "gain_fraction": gain_ns / step_ns if step_ns else None,
        "method": "replay",
        "condition": candidate.condition,
        "note": None,
        "low_step_ns": step_ns - gain_ns,
        "high_step_ns": step_ns if candidate.is_bound else step_ns - gain_ns,
        "assumptions": BOUND if candidate.is_bound else "",
    }


def _replayed_ns(replay: IterationReplay, candidate: Candidate, measured_ns: float) -> float:
    """Return when the last pipeline ends with a candidate, as the mean over the iterations."""
    changed = (candidate.duration_ns, candidate.delay_ns, candidate.lag_ns, candidate.outside.sooner_ns)
    if all(each is None for each in changed):
        return measured_ns
    return replay.mean_end_ns(_costs(replay, candidate), candidate.outside.sooner_ns, candidate.pipelines)


def _costs(replay: IterationReplay, candidate: Candidate | None) -> tuple[Times, Times, Times]:
    """Return durations, delays and lags with a candidate; None: as measured."""
    as_measured = (replay.duration_ns, replay.delay_ns, replay.lag_ns)
    if candidate is None:
        return as_measured
    changed = (candidate.duration_ns, candidate.delay_ns, candidate.lag_ns)
    duration_ns, delay_ns, lag_ns = (
        one if one is not None else other for one, other in zip(changed, as_measured, strict=True)
    )
    return duration_ns, delay_ns, lag_ns
