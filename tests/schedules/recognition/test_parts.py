"""The parts of recognition: encoding, positions of ranks, candidates, traits of searches, faults."""

import doctest
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules import order, parse_action
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.recognition.arrangement import find_arrangements
from stagescope.schedules.recognition.candidates import PEAKS, list_candidates
from stagescope.schedules.recognition.encoding import (
    DecodedAction,
    EncodedOrder,
    F,
    I,
    W,
    count_misplaced,
    decode,
    encode,
    encode_order,
    longest_increasing,
)
from stagescope.schedules.recognition.evidence import MAX_FAULTS, group_sizes, read_evidence
from stagescope.schedules.recognition.search_traits import Peak, alternates, names_by_traits, peak


def line(text, *, weights=True):
    return encode_order([parse_action(word) for word in text.split()], weights=weights)


def arranged(orders):
    return [(each.placement, each.chunks, each.labels) for each in find_arrangements(read_evidence(orders))]


@given(kind=st.sampled_from([F, I, W]), stage=st.integers(0, 10**5), microbatch=st.integers(0, 10**6))
def test_decoding_inverts_encoding(kind, stage, microbatch):
    assert decode(encode(kind, stage, microbatch)) == DecodedAction(kind, stage, microbatch)


@given(places=st.permutations(range(7)))
def test_longest_increasing_equals_brute_force(places):
    rows = [[]]
    for place in places:
        rows += [[*row, place] for row in rows if not row or row[-1] < place]
    assert longest_increasing(places) == max(map(len, rows))


@pytest.mark.parametrize(
    ("measured", "theory", "count"),
    [
        ("F0.0 F0.1 B0.0 B0.1", "F0.0 F0.1 B0.0 B0.1", 0),
        ("F0.0 F0.1 B0.0 B0.1", "F0.0 F0.1 I0.0 W0.0 I0.1 W0.1", 0),
        ("F0.0 F0.1 B0.1", "F0.0 B0.0 F0.1 B0.1", 0),  # an action that was not measured does not count
        ("F0.1 F0.0 B0.0 B0.1", "F0.0 F0.1 B0.0 B0.1", 1),
        ("F0.0 F0.1 B0.0 B0.1 B0.2", "F0.0 F0.1 B0.0 B0.1", 2),  # B is I and W
        ("F0.0 F0.1+B0.0 B0.1", "F0.0 F0.1 B0.0 B0.1", 1),
        ("F0.0 F0.1+B0.0 B0.1", "F0.0 F0.1+B0.0 B0.1", 0),
    ],
)
def test_misplaced_actions_are_the_fewest_to_move_or_remove(measured, theory, count):
    assert count_misplaced(line(measured), line(theory), paired=True) == count


def test_encoding_without_weights_keeps_the_input_gradient():
    assert line("F0.0 I0.0 W0.0", weights=False) == line("F0.0 B0.0", weights=False)
    assert line("F0.0 F0.1+B0.0", weights=False) == EncodedOrder(
        [encode(F, 0, 0), encode(F, 0, 1), encode(I, 0, 0)], {encode(F, 0, 1): encode(I, 0, 0)}
    )


@pytest.mark.parametrize(
    ("name", "chunks", "placement"),
    [("1f1b", 1, "linear"), ("interleaved", 3, "loop"), ("zb-v", 2, "v"), ("chimera", 2, "bidirectional")],
)
def test_positions_follow_from_stages_not_from_rank_labels(name, chunks, placement):
    orders = order(name, ranks=4, microbatches=8, chunks=chunks)
    called = (70, 3, 12, 5)
    assert arranged({called[rank]: orders[rank] for rank in (2, 0, 3, 1)}) == [(placement, chunks, called)]


def test_one_rank_with_two_chunks_fits_a_loop_and_a_v():
    assert [each[0] for each in arranged(order("zb-v", ranks=1, microbatches=3))] == ["loop", "v"]


def test_keeps_the_position_of_a_missing_rank():
    orders = order("1f1b", ranks=4, microbatches=8)
    del orders[1]
    assert arranged(orders) == [("linear", 1, (0, None, 2, 3))]


def test_finds_the_direction_of_a_replica_without_its_first_micro_batch():
    orders = order("dualpipe", ranks=4, microbatches=8)
    orders[0] = [each for each in orders[0] if all(action[1:3] != (0, 0) for action in each.parts)]
    assert arranged(orders) == [("bidirectional", 2, (0, 1, 2, 3))]


@pytest.mark.parametrize("size", [4, 5, 7])
def test_reads_group_sizes_from_the_warm_up(size):
    orders = order("interleaved", ranks=4, microbatches=14, chunks=2, group_size=size) if size != 4 else order(
        "interleaved", ranks=4, microbatches=16, chunks=2
    )  # fmt: skip
    assert group_sizes(read_evidence(orders)) == [size]


def test_reports_a_few_faults_of_each_sort():
    orders = order("1f1b", ranks=2, microbatches=8)
    orders[1] += [parse_action("F0.1"), parse_action("B1.9"), *orders[1][:7]]
    orders[7] = []
    faults = read_evidence(orders).faults
    assert faults[:2] == ("rank 7 is empty", "rank 1 runs F1.0 2 times")
    assert faults[MAX_FAULTS + 1] == "3 more like this"  # and F0.1 on two ranks
    assert "rank 1, B1.9: micro-batches are 0 to 7" in faults
    assert "rank 1, F0.1: the stage belongs to another rank" in faults


@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_peaks_of_searched_orders_are_as_stated(name, ranks):
    options = {"costs": Costs()} if name == "zb-v" else {}
    orders = order(name, ranks=ranks, microbatches=3 * ranks, **options)
    assert max(peak_in_flight(orders).values()) == PEAKS[name](ranks)


@pytest.mark.parametrize(
    "ranks", [1, 2, 4, *(pytest.param(ranks, marks=pytest.mark.exhaustive) for ranks in (3, 5, 6, 7, 8))]
)
def test_zb_1p_equals_zb_h1_where_recognition_assumes_it(ranks):
    for microbatches in range(1, 3 * ranks + 2):
        (arrangement,) = find_arrangements(
            read_evidence(order("1f1b", ranks=ranks, microbatches=microbatches))
        )
        found = {each.name: each for each in list_candidates(arrangement, microbatches, [])}
        assert found["zb-1p"].searched == (microbatches <= ranks)
        assert found["zb-1p"].order == order("zb-1p", ranks=ranks, microbatches=microbatches)


def test_traits_show_the_memory_limit_or_both_limits():
    costs = Costs(forward=9, backward_input=13, backward_weight=6, hop=2)
    small, large = (
        [
            encode_order(row, weights=True)
            for row in order(name, ranks=4, microbatches=24, costs=costs).values()
        ]
        for name in ("zb-1p", "zb-2p")
    )
    assert names_by_traits("linear", small) == ("zb-1p", "zb-2p")
    assert names_by_traits("linear", large) == ("zb-2p",)
    assert names_by_traits("linear", [EncodedOrder(row.codes[::-1], {}) for row in large]) == ()
    everything = [
        encode_order(row, weights=True) for row in order("gpipe", ranks=4, microbatches=24).values()
    ]
    assert names_by_traits("linear", everything) == ()


def test_lost_actions_widen_the_bounds_of_a_peak():
    actions = [
        DecodedAction(F, 0, 0),
        DecodedAction(F, 0, 1),
        DecodedAction(I, 0, 0),
        DecodedAction(I, 0, 1),
        DecodedAction(W, 0, 1),
    ]
    assert peak(actions) == Peak(least=1, most=2)


def test_too_few_turns_do_not_count_as_alternation():
    turns = [DecodedAction(kind, 0, i) for i in range(20) for kind in (F, I)]
    assert alternates([turns])
    assert not alternates([turns[:20]])
    assert not alternates(
        [[DecodedAction(F, 0, i) for i in range(40)] + [DecodedAction(I, 0, i) for i in range(40)]]
    )


@pytest.mark.parametrize("name", ["encoding", "search_traits", "recognizer"])
def test_examples_run(name):
    tested = doctest.testmod(import_module(f"stagescope.schedules.recognition.{name}"))
    assert tested.failed == 0
    assert tested.attempted
