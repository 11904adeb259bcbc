"""Which action of its order each job of a rank was, where jobs are lost, stand extra, or say no number.

1. The fewest edits decide: an edit is a job of the order that was not seen (lost) or a job seen that the order
   does not have (extra). What a job says of itself is hard evidence: it is never matched against it.
2. Where several matches need the fewest edits (one of several like neighbours was lost), the time that each
   leaves unexplained decides, where it does so clearly. Else exactly those jobs stay without an action.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from stagescope.schedules.recognition.edit_paths import FAR, Pair, find_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagescope.schedules.recognition.edit_paths import EditPaths

Key = TypeVar("Key")


class Mark(NamedTuple):
    """A job as it says of itself, or as the order has it; None stands for what is not said.

    `sort` is whatever tells jobs apart for certain, such as forward and backward.
    """

    sort: str
    chunk: int | None = None
    microbatch: int | None = None

    def fits(self, expected: Mark) -> bool:
        """Tell whether this may be the expected one: no known value differs."""
        return (
            self.sort == expected.sort
            and (self.chunk is None or expected.chunk is None or self.chunk == expected.chunk)
            and (
                self.microbatch is None
                or expected.microbatch is None
                or self.microbatch == expected.microbatch
            )
        )


class Clues(Protocol):
    """What times say about a match; both numbers are nanoseconds."""

    @property
    def margin_ns(self) -> int:
        """How much less time a match must leave unexplained than the next one, per lost job, to be believed."""

    def unexplained_ns(self, seen: int, place: int, first_lost: int) -> int:
        """Return the time left unexplained if job `seen` is action `place`.

        The actions from `first_lost` to before `place` were lost between job `seen` - 1 and it. `seen` is the
        number of jobs, and `place` that of actions, for what was lost after the last job.
        """


class Match(NamedTuple):
    """Per job seen the index of its action, None where it is extra or cannot be told.

    `extra` are the jobs that the order does not have, `ambiguous` those that could be one of several actions,
    `lost` the actions that no job was, `edits` the number of lost actions and extra jobs; the ambiguous ones'
    share in `edits` is certain, their share in `lost` is one of several possibilities.
    """

    places: tuple[int | None, ...]
    lost: tuple[int, ...]
    extra: tuple[int, ...]
    ambiguous: tuple[int, ...]
    edits: int


def match(
    seen: Sequence[Mark], expected: Sequence[Mark], *, most_edits: int, clues: Clues | None = None
) -> Match | None:
    """Return which action each job was, None where that would take more than `most_edits` edits.

    >>> order = [Mark("F", microbatch=j) for j in (0, 1)] + [Mark("B", microbatch=j) for j in (0, 1)]
    >>> match([Mark("F", microbatch=1), Mark("B"), Mark("B")], order, most_edits=1)
    Match(places=(1, 2, 3), lost=(0,), extra=(), ambiguous=(), edits=1)
    >>> match([Mark("F"), Mark("B"), Mark("B")], order, most_edits=1).ambiguous
    (0,)
    """
    if len(seen) == len(expected) and all(map(Mark.fits, seen, expected)):
        return Match(tuple(range(len(seen))), (), (), (), 0)

    def fits(job: int, action: int) -> bool:
        return seen[job].fits(expected[action])

    paths = find_paths(fits, (len(seen), len(expected)), most_edits)
    return None if paths is None else _decide(paths, clues)


def _decide(paths: EditPaths, clues: Clues | None) -> Match:
    """Return the match, taken apart at the jobs that are the same action on every path."""
    jobs, actions = paths.sizes
    pairs = [paths.pairs(i) for i in range(jobs)]
    certain = [found[0] for i, found in enumerate(pairs) if len(found) == 1 and not paths.may_be_extra(i)]
    places: list[int | None] = [None] * jobs
    ambiguous: list[int] = []
    taken: set[int] = set()
    extra: set[int] = set()
    start = Pair(-1, -1)
    for end in (*certain, Pair(jobs, actions)):
        stretch = _Stretch(start, end, [pair for i in range(start.seen + 1, end.seen) for pair in pairs[i]])
        best, sure = stretch.decide(paths, clues)
        for pair in best:
            taken.add(pair.place)
            places[pair.seen] = pair.place if pair.seen in sure else None
        inside = set(range(start.seen + 1, end.seen))
        ambiguous += sorted(inside - sure)
        extra |= (inside & sure) - {pair.seen for pair in best}
        start = end
        if end.seen < jobs:
            places[end.seen] = end.place
            taken.add(end.place)
    lost = tuple(j for j in range(actions) if j not in taken)
    return Match(tuple(places), lost, tuple(sorted(extra)), tuple(ambiguous), paths.edits)


class _Edge(NamedTuple):
    """From one matched job to the next, with what lies between them extra or lost."""

    start: Pair
    end: Pair
    unexplained_ns: int


class _Stretch:
    """The jobs between two that are certain, and all ways to match them with the fewest edits."""

    def __init__(self, start: Pair, end: Pair, pairs: list[Pair]) -> None:
        self.start, self.end, self.pairs = start, end, pairs

    def decide(self, paths: EditPaths, clues: Clues | None) -> tuple[list[Pair], set[int]]:
        """Return the best way, and the jobs of which it is known for sure what they are, or that they are extra."""
        inside = range(self.start.seen + 1, self.end.seen)
        if not inside or not self.pairs:
            return [], set(inside)
        into = self._edges(paths, clues)
        before_ns, best = self._shortest(into)
        after_ns = self._to_the_end(into)
        lost = self.end.place - self.start.place - (self.end.seen - self.start.seen)
        # Each lost job may have been shorter or longer than usual: the more, the farther apart chance can lead.
        margin_ns = max(clues.margin_ns * max(lost, 1), 1) if clues else 1
        totals: dict[int, dict[int | None, int]] = defaultdict(dict)
        for edge in (edge for edges in into.values() for edge in edges):
            total_ns = before_ns[edge.start] + edge.unexplained_ns + after_ns[edge.end]
            if edge.end != self.end:
                _lower(totals[edge.end.seen], edge.end.place, total_ns)
            for skipped in range(edge.start.seen + 1, edge.end.seen):
                _lower(totals[skipped], None, total_ns)
        sure = {
            i
            for i in inside
            if len(costs := sorted(totals[i].values())) == 1 or costs[1] - costs[0] >= margin_ns
        }
        return best, sure

    def _edges(self, paths: EditPaths, clues: Clues | None) -> dict[Pair, list[_Edge]]:
        """Return the edges that lead to each pair, those of `pairs` in order and the end last."""
        into: dict[Pair, list[_Edge]] = {}
        reached = [self.start]
        total = paths.edits_before(self.end)
        for end in (*self.pairs, self.end):
            edits = total if end == self.end else paths.edits_before(end)
            near = takewhile(lambda each, end=end: end.seen - each.seen - 1 <= paths.edits, reversed(reached))  # type: ignore[misc]
            edges = [_Edge(each, end, 0) for each in near if _leads(each, end, edits, paths)]
            if clues:
                edges = [
                    edge._replace(unexplained_ns=clues.unexplained_ns(*end, edge.start.place + 1))
                    for edge in edges
                ]
            if edges:
                into[end] = edges
                reached.append(end)
        return into

    def _shortest(self, into: dict[Pair, list[_Edge]]) -> tuple[dict[Pair, int], list[Pair]]:
        """Return the least unexplained time up to each pair, and the pairs of the best way."""
        before_ns = {self.start: 0}
        came: dict[Pair, Pair] = {}
        for end, edges in into.items():
            best = min(edges, key=lambda edge: before_ns[edge.start] + edge.unexplained_ns)
            before_ns[end] = before_ns[best.start] + best.unexplained_ns
            came[end] = best.start
        return before_ns, list(self._back(came))[::-1]

    def _back(self, came: dict[Pair, Pair]) -> Iterator[Pair]:
        at = came[self.end]
        while at != self.start:
            yield at
            at = came[at]

    def _to_the_end(self, into: dict[Pair, list[_Edge]]) -> dict[Pair, int]:
        """Return the least unexplained time from each pair to the end."""
        after_ns = {self.end: 0}
        for end in reversed(into):
            for edge in into[end]:
                _lower(after_ns, edge.start, after_ns.get(end, FAR) + edge.unexplained_ns)
        return after_ns


def _leads(start: Pair, end: Pair, edits: int, paths: EditPaths) -> bool:
    """Tell whether a path with the fewest edits goes from one pair to the other with no pair between."""
    extra, lost = end.seen - start.seen - 1, end.place - start.place - 1
    if extra < 0 or lost < 0:
        return False
    done = paths.edits_before(start) if start.seen >= 0 else 0
    return done + extra + lost == edits


def _lower(values: dict[Key, int], key: Key, value: int) -> None:
    """Keep the smaller value of a key."""
    values[key] = min(value, values.get(key, FAR))
