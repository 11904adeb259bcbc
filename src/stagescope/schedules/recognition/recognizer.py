"""Which schedule a measured order is: all ranks together against every order that the catalog can build.

1. Read the evidence: micro-batches, stages per rank, whether weight gradients and pairs were seen, faults.
2. Build every order of the catalog with that placement and these sizes.
3. Compare on the jobs that were measured: the distance is the share of them that stand elsewhere.
4. Give the nearest its name, unless it is too far, another is nearly as near, or what would tell two
   schedules apart is just what is missing. What searches find from costs is recognized by what all such
   orders have (`search_traits`).

docs/recognition.md has the limits and the ambiguities that are proved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.placement import stage_count
from stagescope.schedules.recognition import wording
from stagescope.schedules.recognition.arrangement import find_arrangements
from stagescope.schedules.recognition.comparison import compare_all, why_equal
from stagescope.schedules.recognition.evidence import read_evidence
from stagescope.schedules.recognition.result import (
    CLOSE,
    LOST,
    OTHER_COSTS,
    UNKNOWN,
    Alternative,
    Recognition,
)
from stagescope.schedules.recognition.search_traits import names_by_traits
from stagescope.schedules.validation import validate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.recognition.comparison import Compared
    from stagescope.schedules.recognition.evidence import Evidence, MeasuredOrders
    from stagescope.schedules.recognition.result import Parameters

FARTHEST = 0.05
"""The largest distance at which an order still has the nearest schedule's name."""

NARROWEST = 0.05
"""The smallest margin at which an order that is not exactly a schedule's has the nearest one's name."""

MOST_MISSING = 0.1
"""The largest share of missing jobs at which an order can have a name."""

ALIKE_SEARCHED = {
    "linear": ("1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "interleaved-zb", "zb-1p", "zb-2p"),
    "v": ("zb-v",),
}
"""Where one of these is nearest and none fits exactly, the order may be a search's for other costs."""


def recognize(orders: MeasuredOrders) -> Recognition:
    """Return which schedule the measured orders of all ranks together are, or "unknown" and the nearest one.

    `orders` has one row of actions per rank, as `Action` or in its notation, in the order in which they ran.
    Keys may be any numbers: a rank's place in the pipeline follows from its stages. Jobs may be missing, and
    full backwards may stand for split ones; what cannot be told apart then is in `alternatives`. Raises
    ScheduleError only for a word that is no action.

    >>> from stagescope.schedules import order
    >>> found = recognize(order("zb-h1", ranks=4, microbatches=8))
    >>> found.name, found.distance, found.alternatives
    ('zb-h1', 0.0, ('zb-1p', 'interleaved-zb'))
    >>> recognize({0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}).name
    '1f1b'
    """
    evidence = read_evidence(orders)
    arrangements = find_arrangements(evidence)
    compared = [each for arrangement in arrangements for each in compare_all(evidence, arrangement)]
    if not compared:
        return _nothing_fits(evidence, arrangements)
    return _decide(evidence, sorted(compared, key=lambda each: each.nearness))


def _nothing_fits(evidence: Evidence, arrangements: Sequence[Arrangement]) -> Recognition:
    if arrangements:
        sentence = wording.no_schedule(arrangements, evidence.microbatches)
    else:
        sentence = wording.no_placement(evidence)
    return Recognition(UNKNOWN, None, 1.0, 0.0, "", 0.0, sentence, faults=_faults(evidence))


class _Verdict(NamedTuple):
    name: str
    parameters: Parameters
    sentence: str
    indistinct: list[Alternative]


def _decide(evidence: Evidence, compared: Sequence[Compared]) -> Recognition:
    """Return what the nearest ones make of an order; `compared` begins with the nearest."""
    best = compared[0]
    missing_fraction = _missing_fraction(evidence, best.arrangement)
    sound = not evidence.renumbered and missing_fraction <= MOST_MISSING
    name, parameters, verdict, indistinct = _judge(evidence, compared, sound=sound)
    sentence = "; ".join([
        wording.shape(best.arrangement, evidence.microbatches),
        *wording.gaps(best.arrangement, evidence, missing_fraction),
        verdict,
        *wording.others(indistinct),
    ])  # fmt: skip
    return Recognition(
        name=name,
        parameters=parameters,
        distance=best.distance,
        margin=_margin(compared, {name, *(each.name for each in indistinct)}),
        nearest=best.name,
        missing_fraction=missing_fraction,
        evidence=sentence,
        indistinct=tuple(indistinct),
        faults=_faults(evidence) if best.distance or missing_fraction or name == UNKNOWN else evidence.faults,
    )


def _judge(evidence: Evidence, compared: Sequence[Compared], *, sound: bool) -> _Verdict:
    """Return the nearest one's name, else that of a search that leaves such orders, else unknown."""
    best = compared[0]
    indistinct = _indistinct(evidence, compared)
    contested = any(each.reason in (LOST, CLOSE) and each.name != best.name for each in indistinct)
    searches = _searches(evidence, best) if sound and best.distance else []
    if best.distance == 0:
        near = True
    elif any(each.name == best.name for each in searches):
        near = False  # the same search, for other costs
    else:
        near = best.distance <= FARTHEST and best.same_form
    if sound and near and not contested:
        sentence = wording.close(best.name, best.distance) if best.distance else wording.exact(best.name)
        return _Verdict(best.name, best.parameters, sentence, indistinct + searches)
    if not searches:
        return _Verdict(UNKNOWN, best.parameters, wording.unknown(best.name, best.distance), indistinct)
    name, parameters = searches[0][:2]
    close = [Alternative(best.name, best.parameters, best.distance, CLOSE), *indistinct]
    others = [each for each in close if each.name != name and best.distance <= FARTHEST]
    sentence = wording.by_traits(name, best.name, best.distance)
    return _Verdict(name, parameters, sentence, searches[1:] + others)


def _indistinct(evidence: Evidence, compared: Sequence[Compared]) -> list[Alternative]:
    """Return what the nearest one cannot be told from, with reasons."""
    best = compared[0]
    found: list[Alternative] = []
    for each in compared[1:]:
        reason = ""
        if each.distance == best.distance:
            reason = why_equal(evidence, best.candidate, each.candidate)
        if reason in ("", LOST) and best.distance:
            reason = CLOSE if each.distance - best.distance < NARROWEST else ""
        if reason:
            found.append(Alternative(each.name, each.parameters, each.distance, reason))
    return found


def _searches(evidence: Evidence, best: Compared) -> list[Alternative]:
    """Return the searched schedules that an order may be for other costs, where anything speaks for one."""
    alike = ALIKE_SEARCHED.get(best.arrangement.placement, ())
    if not evidence.weights or evidence.paired or evidence.repeated or best.name not in alike:
        return []
    lines = [evidence.lines[label] for label in best.arrangement.labels if label is not None]
    names = names_by_traits(best.arrangement.placement, lines)
    parameters = best.parameters._replace(options={})
    return [Alternative(name, parameters, best.distance, OTHER_COSTS) for name in names]


def _margin(compared: Sequence[Compared], names: set[str]) -> float:
    """Return how much farther the next schedule is; without one, how much farther one could be."""
    best = compared[0]
    return (
        next((each.distance for each in compared[1:] if each.name not in {best.name, *names}), 1.0)
        - best.distance
    )


def _missing_fraction(evidence: Evidence, arrangement: Arrangement) -> float:
    stages = stage_count(arrangement.placement, arrangement.ranks, arrangement.chunks)
    expected = stages * evidence.microbatches * (3 if evidence.weights else 2)
    return max(1 - (evidence.action_count - evidence.repeated) / expected, 0.0)


def _faults(evidence: Evidence) -> tuple[str, ...]:
    """Return what is wrong with the order; if nothing was seen, what stops it from running at all."""
    if evidence.faults:
        return evidence.faults
    try:
        validate(evidence.actions)
    except ScheduleError as error:
        return (str(error),)
    return ()
