"""Matching of observed actions with the actions of a known order, if some are lost, extra or not fully labeled.

1. The fewest edits decide. An edit is a planned action that was not observed (lost), or an observed action that was not
   planned (extra). Labels are hard evidence: an action is never matched against its own label.
2. If several matches need the fewest edits (one of several equal neighbors was lost), the time that each of them leaves
   unexplained decides, provided that the difference is clear. Otherwise exactly these actions remain without a match:
   a wrong micro-batch number would shift every later conclusion, a missing one does not.
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
    """The known properties of an observed or planned action; None means unknown.

    `sort` is any property that is always known, such as forward or backward.
    """

    sort: str
    chunk: int | None = None
    microbatch: int | None = None

    def fits(self, expected: Mark) -> bool:
        """Return whether this may be the expected action: no known value differs."""
        return (
            self.sort == expected.sort
            and (self.chunk is None or expected.chunk is None or self.chunk == expected.chunk)
            and (
                self.microbatch is None
                or expected.microbatch is None
                or self.microbatch == expected.microbatch
            )
        )


class TimeEvidence(Protocol):
    """Evidence from times about a match, in nanoseconds."""

    @property
    def margin_ns(self) -> int:
        """How much less time a match must leave unexplained than the next best one, per lost action, to be accepted."""

    def unexplained_ns(self, seen: int, place: int, first_lost: int) -> int:
        """Return the time left unexplained if observed action `seen` is planned action `place`.

        The planned actions from `first_lost` to before `place` were lost between observed actions `seen` - 1 and
        `seen`. For losses after the last observed action, `seen` and `place` are the numbers of all actions.
        """


class Match(NamedTuple):
    """Per observed action the index of its planned action, None if it is extra or ambiguous.

    `extra` are the observed actions that were not planned, `ambiguous` the observed actions that could be one of
    several planned ones, `lost` the planned actions that were not observed, `edits` the number of lost and extra
    actions. The contribution of ambiguous actions to `edits` is certain; to `lost` it is one of several possibilities.
    """

    places: tuple[int | None, ...]
    lost: tuple[int, ...]
    extra: tuple[int, ...]
    ambiguous: tuple[int, ...]
    edits: int


def match(
    seen: Sequence[Mark], expected: Sequence[Mark], *, most_edits: int, clues: TimeEvidence | None = None
) -> Match | None:
    """Return the planned action of each observed one, None if that takes more than `most_edits` edits.

    >>> order = [Mark("F", microbatch=j) for j in (0, 1)] + [Mark("B", microbatch=j) for j in (0, 1)]
    >>> match([Mark("F", microbatch=1), Mark("B"), Mark("B")], order, most_edits=1)
    Match(places=(1, 2, 3), lost=(0,), extra=(), ambiguous=(), edits=1)
    >>> match([Mark("F"), Mark("B"), Mark("B")], order, most_edits=1).ambiguous
    (0,)
    """
    # The usual case, in which nothing was lost, needs no dynamic programming.
    if len(seen) == len(expected) and all(map(Mark.fits, seen, expected)):
        return Match(tuple(range(len(seen))), (), (), (), 0)

    def fits(observed: int, planned: int) -> bool:
        return seen[observed].fits(expected[planned])

    paths = find_paths(fits, (len(seen), len(expected)), most_edits)
    return None if paths is None else _decide(paths, clues)


def _decide(paths: EditPaths, clues: TimeEvidence | None) -> Match:
    """Return the match, decided separately between the actions that are the same on every path."""
    observed, planned = paths.sizes
    pairs = [paths.pairs(i) for i in range(observed)]
    # Every path passes through a certain pair, so the stretches between them are independent and short.
    certain = [found[0] for i, found in enumerate(pairs) if len(found) == 1 and not paths.may_be_extra(i)]
    places: list[int | None] = [None] * observed
    ambiguous: list[int] = []
    taken: set[int] = set()
    extra: set[int] = set()
    start = Pair(-1, -1)
    # The last pair is a sentinel behind both sequences.
    for end in (*certain, Pair(observed, planned)):
        stretch = _Stretch(start, end, [pair for i in range(start.seen + 1, end.seen) for pair in pairs[i]])
        best, sure = stretch.decide(paths, clues)
        for pair in best:
            taken.add(pair.place)
            places[pair.seen] = pair.place if pair.seen in sure else None
        inside = set(range(start.seen + 1, end.seen))
        ambiguous += sorted(inside - sure)
        extra |= (inside & sure) - {pair.seen for pair in best}
        start = end
        if end.seen < observed:
            places[end.seen] = end.place
            taken.add(end.place)
    lost = tuple(j for j in range(planned) if j not in taken)
    return Match(tuple(places), lost, tuple(sorted(extra)), tuple(ambiguous), paths.edits)


class _Edge(NamedTuple):
    """From one matched pair to the next; all actions between them are extra or lost."""

    start: Pair
    end: Pair
    unexplained_ns: int


class _Stretch:
    """The actions between two certain pairs, and all ways to match them with the fewest edits."""

    def __init__(self, start: Pair, end: Pair, pairs: list[Pair]) -> None:
        self.start, self.end, self.pairs = start, end, pairs

    def decide(self, paths: EditPaths, clues: TimeEvidence | None) -> tuple[list[Pair], set[int]]:
        """Return the best pairs, and the observed actions for which a match, or that they are extra, is certain.

        For each observed action, the best total time of every possible match is compared with the second best. This is
        a shortest path over the pairs from both ends, so each edge is looked at twice.
        """
        inside = range(self.start.seen + 1, self.end.seen)
        # Without possible pairs everything inside is extra, which is certain.
        if not inside or not self.pairs:
            return [], set(inside)
        into = self._edges(paths, clues)
        before_ns, best = self._shortest(into)
        after_ns = self._to_the_end(into)
        # Lost minus extra actions inside the stretch.
        lost = self.end.place - self.start.place - (self.end.seen - self.start.seen)
        # Each lost action may have been shorter or longer than usual, so chance differences grow with their number.
        margin_ns = max(clues.margin_ns * max(lost, 1), 1) if clues else 1
        totals: dict[int, dict[int | None, int]] = defaultdict(dict)
        for edge in (edge for edges in into.values() for edge in edges):
            total_ns = before_ns[edge.start] + edge.unexplained_ns + after_ns[edge.end]
            if edge.end != self.end:
                _lower(totals[edge.end.seen], edge.end.place, total_ns)
            for skipped in range(edge.start.seen + 1, edge.end.seen):
                _lower(totals[skipped], None, total_ns)
        # An action is certain with only one option, or if the second best option is worse by the margin.
        sure = {
            i
            for i in inside
            if len(costs := sorted(totals[i].values())) == 1 or costs[1] - costs[0] >= margin_ns
        }
        return best, sure

    def _edges(self, paths: EditPaths, clues: TimeEvidence | None) -> dict[Pair, list[_Edge]]:
        """Return the edges that lead to each pair, in the order of `pairs` with the end last."""
        into: dict[Pair, list[_Edge]] = {}
        reached = [self.start]
        total = paths.edits_before(self.end)
        for end in (*self.pairs, self.end):
            edits = total if end == self.end else paths.edits_before(end)
            # An edge skips at most `edits` observed actions, so pairs further back cannot lead here.
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
        """Return the least unexplained time up to each pair, and the pairs of the best path."""
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
        # `into` is in topological order, so the reverse order completes each pair before it is used.
        for end in reversed(into):
            for edge in into[end]:
                _lower(after_ns, edge.start, after_ns.get(end, FAR) + edge.unexplained_ns)
        return after_ns


def _leads(start: Pair, end: Pair, edits: int, paths: EditPaths) -> bool:
    """Return whether a path with the fewest edits goes from one pair to the next without a pair between."""
    # Between two consecutive pairs all observed actions are extra and all planned ones lost.
    extra, lost = end.seen - start.seen - 1, end.place - start.place - 1
    if extra < 0 or lost < 0:
        return False
    done = paths.edits_before(start) if start.seen >= 0 else 0
    return done + extra + lost == edits


def _lower(values: dict[Key, int], key: Key, value: int) -> None:
    """Lower the value of a key to `value` if that is smaller."""
    values[key] = min(value, values.get(key, FAR))
