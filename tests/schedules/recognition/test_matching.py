from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope import schedules
from stagescope.schedules.recognition.matching import Mark, match

SORTS = st.lists(st.sampled_from("FB"), max_size=9).map("".join)


class Times(NamedTuple):
    """Times of a rank that runs its actions one after the other, each with its usual duration."""

    starts_ns: list[int]
    ends_ns: list[int]
    usual_ns: list[int]
    margin_ns: int = 5

    def unexplained_ns(self, seen, place, first_lost):
        free_ns = self.ends_ns[seen - 1] if seen else 0
        ready_ns = free_ns + sum(self.usual_ns[first_lost:place])
        return abs(self.starts_ns[seen] - ready_ns) if seen < len(self.starts_ns) else 0


def marks(word):
    return [Mark(letter) for letter in word]


def rows(action):
    """Return the mark of an action on a rank that numbers only its forwards."""
    return Mark(action.kind, action.stage, action.microbatch)


def places(word, order, **words):
    return match(marks(word), marks(order), most_edits=9, **words).places


def test_matches_equal_sequences_one_to_one():
    found = match(marks("FFBFB"), marks("FFBFB"), most_edits=0)
    assert (found.places, found.edits) == ((0, 1, 2, 3, 4), 0)


def test_a_lost_action_does_not_shift_others():
    assert places("FBFFBFB", "FBFBFBFB") == (0, 1, 2, 4, 5, 6, 7)


def test_an_extra_action_is_reported_and_does_not_shift_others():
    found = match(marks("FBWFB"), marks("FBFB"), most_edits=2)
    assert (found.places, found.extra) == ((0, 1, None, 2, 3), (2,))


def test_equal_unnumbered_neighbors_stay_unmatched_if_one_is_lost():
    found = match(marks("FFFBFB"), marks("FFFFBFB"), most_edits=2)
    assert found.places == (None, None, None, 4, 5, 6)
    assert (found.ambiguous, found.edits, len(found.lost)) == ((0, 1, 2), 1, 1)


def test_numbers_decide_which_neighbor_is_lost():
    order = [Mark("F", 0, j) for j in range(4)]
    assert match([Mark("F", microbatch=j) for j in (0, 2, 3)], order, most_edits=1).places == (0, 2, 3)


def test_a_single_number_limits_the_ambiguity():
    order = [Mark("F", 0, j) for j in range(5)]
    found = match([Mark("F"), Mark("F", microbatch=2), Mark("F"), Mark("F")], order, most_edits=1)
    assert found.places == (None, 2, 3, 4)


def test_never_matches_an_action_against_its_own_label():
    found = match([Mark("F", microbatch=7)], [Mark("F", 0, 0)], most_edits=2)
    assert (found.places, found.extra, found.lost) == ((None,), (0,), (0,))


def test_a_known_chunk_counts_like_a_number():
    order = [Mark("B", chunk, 0) for chunk in (1, 0, 1, 0)]
    assert match([Mark("B", 0), Mark("B", 1), Mark("B")], order, most_edits=1).places == (1, 2, 3)


def test_no_match_above_the_allowed_edits():
    assert match(marks("FFFF"), marks("BBBB"), most_edits=7) is None
    assert match(marks("F"), marks("FFFF"), most_edits=2) is None


def test_times_identify_the_lost_action():
    times = Times([0, 20, 30], [10, 30, 40], [10] * 4)
    found = match(marks("FFF"), marks("FFFF"), most_edits=1, clues=times)
    assert (found.places, found.lost, found.ambiguous) == ((0, 2, 3), (1,), ())


def test_ambiguous_times_leave_actions_unmatched():
    times = Times([0, 15, 30], [10, 25, 40], [10] * 4)
    found = match(marks("FFF"), marks("FFFF"), most_edits=1, clues=times)
    assert found.places == (0, None, None)


def test_times_never_override_the_fewest_edits():
    times = Times([0, 500], [10, 510], [10] * 4)
    assert places("FB", "FB", clues=times) == (0, 1)
    assert places("FBF", "FBFB", clues=Times([0, 9, 700], [1, 2, 3], [10] * 4)) == (0, 1, 2)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "dualpipev"])
@pytest.mark.parametrize("seed", range(5))
def test_matches_all_numbered_actions_whatever_is_lost_or_added(name, seed):
    dice = random.Random(seed)  # noqa: S311  # no secret
    for actions in schedules.order(name, ranks=4, microbatches=40).values():
        order = [rows(action) for action in actions]
        kept = [place for place in range(len(order)) if dice.random() > 0.05]
        seen = [order[place] for place in kept]
        stray = dice.randrange(len(seen))
        seen.insert(stray, Mark("X"))
        found = match(seen, order, most_edits=len(order) // 5)
        assert found.extra == (stray,)
        assert [place for at, place in enumerate(found.places) if at != stray] == kept
        assert found.lost == tuple(sorted(set(range(len(order))) - set(kept)))


@pytest.mark.parametrize("seed", range(20))
def test_unnumbered_actions_are_matched_correctly_or_not_at_all(seed):
    dice = random.Random(seed)  # noqa: S311  # no secret
    for actions in schedules.order("1f1b", ranks=4, microbatches=20).values():
        order = [Mark(action.kind) for action in actions]
        lost = dice.randrange(len(order))
        truth = [place for place in range(len(order)) if place != lost]
        found = match([order[place] for place in truth], order, most_edits=4)
        assert all(place in (None, true) for place, true in zip(found.places, truth, strict=True))


def test_matches_two_thousand_actions_with_losses():
    order = [Mark("F", 0, j // 2) if j % 2 == 0 else Mark("B", 0) for j in range(2000)]
    lost = {3, 500, 1001, 1500, 1999}
    seen = [mark for place, mark in enumerate(order) if place not in lost]
    assert set(match(seen, order, most_edits=400).lost) == lost


@given(SORTS, SORTS)
def test_edits_are_minimal(seen, order):
    @cache
    def fewest(i, j):
        if i == len(seen) or j == len(order):
            return len(seen) - i + len(order) - j
        best = 1 + min(fewest(i + 1, j), fewest(i, j + 1))
        return min(best, fewest(i + 1, j + 1)) if seen[i] == order[j] else best

    found = match(marks(seen), marks(order), most_edits=len(seen) + len(order))
    assert found.edits == fewest(0, 0)


@given(SORTS, SORTS)
def test_matches_only_what_all_minimal_alignments_share(seen, order):
    @cache
    def ways(i, j):
        """Return the fewest edits from here on, and every set of places with as few."""
        if i == len(seen):
            return len(order) - j, {()}
        found = [(1 + ways(i + 1, j)[0], {(None, *rest) for rest in ways(i + 1, j)[1]})]
        if j < len(order):
            found.append((1 + ways(i, j + 1)[0], ways(i, j + 1)[1]))
            if seen[i] == order[j]:
                found.append((ways(i + 1, j + 1)[0], {(j, *rest) for rest in ways(i + 1, j + 1)[1]}))
        fewest = min(edits for edits, _ in found)
        return fewest, set().union(*(rest for edits, rest in found if edits == fewest))

    found = match(marks(seen), marks(order), most_edits=len(seen) + len(order))
    columns = list(zip(*ways(0, 0)[1], strict=True))
    assert list(found.places) == [each[0] if len(set(each)) == 1 else None for each in columns]
    assert list(found.ambiguous) == [at for at, each in enumerate(columns) if len(set(each)) > 1]
    assert len(found.lost) - len(found.extra) >= len(order) - len(seen)
