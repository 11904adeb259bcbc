"""Recognition of the schedule of a measured order, by comparison with every order that the catalog can build.

1. Read the evidence: micro-batches, stages per rank, whether weight gradients and pairs were recorded, faults.
2. Build every order of the catalog with this placement and these sizes.
3. Compare the measured actions: the distance is the fraction of them at other positions.
4. Return the name of the nearest schedule, unless it is too far, another one is nearly as near, or only missing actions
   would decide between two schedules. Orders that a search found for unknown costs are recognized by the traits that
   all of them share (`search_traits`).

An order without a clear match is called unknown, never named after the next best schedule: predictions for a wrong
schedule are worse than none. docs/recognition.md has the limits and the proven ambiguities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.placement import stage_count
from stagescope.schedules.recognition import sentences
from stagescope.schedules.recognition.arrangement import find_arrangements
from stagescope.schedules.recognition.comparison import compare_all, reason_for_equality
from stagescope.schedules.recognition.evidence import read_evidence
from stagescope.schedules.recognition.result import (
    ACTIONS_MISSING,
    NEARLY_AS_CLOSE,
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

MAX_DISTANCE = 0.05
"""The largest distance at which an order still gets the name of the nearest schedule."""

MIN_MARGIN = 0.05
"""The smallest margin to the next schedule at which an inexact order gets the name of the nearest one."""

MAX_MISSING_FRACTION = 0.1
"""The largest fraction of missing actions at which an order can have a name."""

NEIGHBORS_OF_SEARCHED = {
    "linear": ("1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "interleaved-zb", "zb-1p", "zb-2p"),
    "v": ("zb-v",),
}
"""If one of these is nearest and none fits exactly, the order may come from a search for other costs."""


def recognize(orders: MeasuredOrders) -> Recognition:
    """Return the schedule that the measured orders of all ranks follow, or "unknown" with the nearest one.

    `orders` maps each rank to its actions in the order in which they ran, as `Action` or as text such as ``F0.3``. The
    keys may be any numbers: the position of a rank in the pipeline follows from its stages. Actions may be missing, and
    split backwards may be recorded as full ones; schedules that the rest does not distinguish are in `alternatives`.
    Raises ScheduleError only for text that is not an action.

    >>> from stagescope.schedules import order
    >>> found = recognize(order("zb-h1", ranks=4, microbatches=8))
    >>> found.name, found.distance, found.alternatives
    ('zb-h1', 0.0, ('zb-1p', 'interleaved-zb'))
    >>> recognize({0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}).name
    '1f1b'
    """
    # Several arrangements fit only for a single rank, where a loop and a V are equal: all are compared.
    evidence = read_evidence(orders)
    arrangements = find_arrangements(evidence)
    compared = [each for arrangement in arrangements for each in compare_all(evidence, arrangement)]
    if not compared:
        return _nothing_fits(evidence, arrangements)
    return _decide(evidence, sorted(compared, key=lambda each: each.sort_key))


def _nothing_fits(evidence: Evidence, arrangements: Sequence[Arrangement]) -> Recognition:
    if arrangements:
        sentence = sentences.no_schedule(arrangements, evidence.microbatches)
    else:
        sentence = sentences.no_placement(evidence)
    return Recognition(UNKNOWN, None, 1.0, 0.0, "", 0.0, sentence, faults=_faults(evidence))


class _Verdict(NamedTuple):
    name: str
    parameters: Parameters
    sentence: str
    indistinct: list[Alternative]


def _decide(evidence: Evidence, compared: Sequence[Compared]) -> Recognition:
    """Return the recognition from all comparisons; `compared` begins with the nearest."""
    best = compared[0]
    missing_fraction = _missing_fraction(evidence, best.arrangement)
    # With too little or corrected evidence even a distance of 0 is no proof: the name is withheld.
    sound = not evidence.renumbered and missing_fraction <= MAX_MISSING_FRACTION
    name, parameters, verdict, indistinct = _judge(evidence, compared, sound=sound)
    sentence = "; ".join([
        sentences.shape(best.arrangement, evidence.microbatches),
        *sentences.omissions(best.arrangement, evidence, missing_fraction),
        verdict,
        *sentences.others(indistinct),
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
    """Return the name of the nearest schedule, of a search that finds such orders, or unknown."""
    best = compared[0]
    indistinct = _indistinct(evidence, compared)
    # An equal order (SAME_ORDER and the like) does not contest the name: it is an alternative by definition. Only
    # schedules between which lost actions or the margin would decide make the name uncertain.
    contested = any(
        each.reason in (ACTIONS_MISSING, NEARLY_AS_CLOSE) and each.name != best.name for each in indistinct
    )
    # At distance 0 the order has the name of that schedule, even if a search would find it too.
    searches = _searches(evidence, best) if sound and best.distance else []
    if best.distance == 0:
        near = True
    elif any(each.name == best.name for each in searches):
        near = False  # the nearest is a search at unit costs: the traits name it, for unknown costs
    else:
        # Without the same form, a distance within the limit means only that few W are out of place, while the structure
        # of the backward differs.
        near = best.distance <= MAX_DISTANCE and best.same_form
    if sound and near and not contested:
        sentence = sentences.close(best.name, best.distance) if best.distance else sentences.exact(best.name)
        return _Verdict(best.name, best.parameters, sentence, indistinct + searches)
    if not searches:
        return _Verdict(UNKNOWN, best.parameters, sentences.unknown(best.name, best.distance), indistinct)
    name, parameters = searches[0][:2]
    close = [Alternative(best.name, best.parameters, best.distance, NEARLY_AS_CLOSE), *indistinct]
    others = [each for each in close if each.name != name and best.distance <= MAX_DISTANCE]
    sentence = sentences.by_traits(name, best.name, best.distance)
    return _Verdict(name, parameters, sentence, searches[1:] + others)


def _indistinct(evidence: Evidence, compared: Sequence[Compared]) -> list[Alternative]:
    """Return the schedules that the evidence does not distinguish from the nearest one, with reasons."""
    best = compared[0]
    found: list[Alternative] = []
    for each in compared[1:]:
        reason = ""
        if each.distance == best.distance:
            reason = reason_for_equality(evidence, best.candidate, each.candidate)
        # Near an inexact match, a candidate within the margin is a rival even if the two orders differ.
        if reason in ("", ACTIONS_MISSING) and best.distance:
            reason = NEARLY_AS_CLOSE if each.distance - best.distance < MIN_MARGIN else ""
        if reason:
            found.append(Alternative(each.name, each.parameters, each.distance, reason))
    return found


def _searches(evidence: Evidence, best: Compared) -> list[Alternative]:
    """Return the searched schedules that may have produced this order for other costs.

    Without recorded W, or with pairs or repetitions, the traits cannot be checked.
    """
    neighbors = NEIGHBORS_OF_SEARCHED.get(best.arrangement.placement, ())
    if not evidence.weights or evidence.paired or evidence.repeated or best.name not in neighbors:
        return []
    orders = [evidence.orders[label] for label in best.arrangement.labels if label is not None]
    names = names_by_traits(best.arrangement.placement, orders)
    parameters = best.parameters._replace(options={})
    return [Alternative(name, parameters, best.distance, OTHER_COSTS) for name in names]


def _margin(compared: Sequence[Compared], names: set[str]) -> float:
    """Return how much larger the distance of the next schedule is; without one, the largest distance 1 is used."""
    best = compared[0]
    return (
        next((each.distance for each in compared[1:] if each.name not in {best.name, *names}), 1.0)
        - best.distance
    )


def _missing_fraction(evidence: Evidence, arrangement: Arrangement) -> float:
    stages = stage_count(arrangement.placement, arrangement.ranks, arrangement.chunks)
    # F, I and W, or F and the whole backward if no W were recorded.
    expected = stages * evidence.microbatches * (3 if evidence.weights else 2)
    return max(1 - (evidence.action_count - evidence.repeated) / expected, 0.0)


def _faults(evidence: Evidence) -> tuple[str, ...]:
    """Return the faults of the order; if none were found, the reason why it cannot run."""
    if evidence.faults:
        return evidence.faults
    try:
        # Validation simulates the order, so it runs only if the evidence has no simpler fault.
        validate(evidence.actions)
    except ScheduleError as error:
        return (str(error),)
    return ()
