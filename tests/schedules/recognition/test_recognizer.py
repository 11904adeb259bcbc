# ruff: noqa: S311  # repeatable random numbers, no secrets
"""Recovery of a planted schedule: from its complete order, from most of it, and with other rank labels."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_orders import golden_cases
from stagescope.schedules import NAMES, SCHEDULES, order, parse_action, recognize
from stagescope.schedules.costs import Costs
from stagescope.schedules.placement import PLACEMENTS, stages_of
from stagescope.schedules.recognition import arrangement
from stagescope.schedules.recognition.arrangement import find_arrangements
from stagescope.schedules.recognition.candidates import VARIANTS
from stagescope.schedules.recognition.result import ACTIONS_MISSING
from stagescope.vocabulary.errors import ScheduleError

GOLDEN_NAMES = {
    "chimera": "chimera",
    "deepseek_dualpipe": "dualpipe",
    "deepseek_dualpipev": "dualpipev",
    "eager_1f1b": "eager-1f1b",
    "gpipe_lifo": "gpipe",
    "msprof_dualpipev": "dualpipev",
    "sailsg_v1f1b": "1f1b-v",
    "sailsg_v_half": "v-half",
    "sailsg_v_min": "v-min",
    "sailsg_zb1p_mem_p": "zb-1p",
    "sailsg_zb2p_mem_2p": "zb-2p",
    "sailsg_zbv_greedy_zb": "zb-v",
    "torch_1f1b_executed": "1f1b",
    "torch_dualpipev": "dualpipev",
    "torch_gpipe": "gpipe",
    "torch_gpipe_executed": "gpipe",
    "torch_interleaved_1f1b": "interleaved",
    "torch_interleaved_zb1p": "interleaved-zb",
    "torch_looped_bfs": "looped-bfs",
    "torch_zbh1": "zb-h1",
    "torch_zbv": "zb-v",
    "victarry_1f1b_batch_overlap": "1f1b-overlap",
    "zb_h2": "zb-h2",
}
SEARCHED_ALIKE = {"zb-1p", "zb-2p"}
"""With few micro-batches these equal a fixed schedule."""

USUAL_SIZES = [(4, 8, 1), (3, 7, 2), (4, 6, 2), (1, 3, 2), (2, 5, 1), (3, 9, 3)]
"""One of each sort: (ranks, micro-batches, chunks) with one rank, few and many micro-batches, uneven groups."""

SIZES = [
    (ranks, microbatches, chunks)
    for ranks in range(1, 9)
    for microbatches in range(1, 25)
    for chunks in (1, 2, 3)
]


def shapes(sizes):
    """Yield every schedule that exists in one of the sizes, with each of its options."""
    for ranks, microbatches, chunks in sizes:
        for schedule in SCHEDULES:
            groups = (
                [{"group_size": n} for n in range(1, microbatches + 1)] if schedule.name in GROUPED else []
            )
            for options in (
                *VARIANTS.get(schedule.name, ({},)),
                *random.Random(microbatches).sample(groups, len(groups) // 8),
            ):
                try:
                    yield schedule, schedule.shape(ranks, microbatches, chunks, options)
                except ScheduleError:  # noqa: PERF203  # each size is tried on its own
                    continue


GROUPED = ("interleaved", "interleaved-overlap")


def without(orders, share, seed):
    """Return the orders without a random fraction of their actions."""
    chance = random.Random(seed)
    return {rank: [each for each in actions if chance.random() >= share] for rank, actions in orders.items()}


def found_sizes(found):
    return found.parameters[:3]


def samples(count, first_seed, usual):
    """Return usual sizes to test always, and samples of all sizes that only exhaustive runs test."""
    seeds = range(first_seed, first_seed + 3)
    sampled = [random.Random(seed).sample(SIZES, count) for seed in seeds]
    return [
        pytest.param(usual, id="usual"),
        *(
            pytest.param(sizes, id=str(seed), marks=pytest.mark.exhaustive)
            for seed, sizes in zip(seeds, sampled, strict=True)
        ),
    ]


@pytest.mark.parametrize("sizes", samples(10, first_seed=0, usual=USUAL_SIZES))
def test_recovers_every_schedule_with_its_parameters(sizes):
    """docs/recognition.md has the result for all sizes to 8 ranks and 24 micro-batches."""
    for schedule, shape in shapes(sizes):
        found = recognize(schedule.build(shape))
        assert schedule.name in (found.name, *found.alternatives), (schedule.name, shape)
        assert found.known
        assert found.distance == found.missing_fraction == 0
        assert found.faults == ()
        assert found_sizes(found) == (shape.ranks, shape.microbatches, shape.chunks)


@pytest.mark.parametrize("sizes", samples(8, first_seed=100, usual=USUAL_SIZES[:3]))
def test_never_returns_a_wrong_name_if_actions_are_lost(sizes):
    for seed, (schedule, shape) in enumerate(shapes(sizes)):
        found = recognize(without(schedule.build(shape), 0.02, seed))
        assert schedule.name in (found.name, *found.alternatives) or not found.known, (schedule.name, shape)


@pytest.mark.parametrize("name", NAMES)
def test_recognizes_a_run_of_usual_size_despite_lost_actions(name):
    found = recognize(without(order(name, ranks=4, microbatches=16), 0.02, seed=1))
    assert name in (found.name, *found.alternatives)
    assert found.known
    assert 0 < found.missing_fraction < 0.05
    assert "of the actions are missing" in found.evidence


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_recognizes_orders_of_reference_implementations(name):
    expected = GOLDEN_NAMES[name]
    for ranks, microbatches, words in golden_cases(name):
        found = recognize(words)
        if expected in SEARCHED_ALIKE or (ranks, microbatches) == (2, 2) or microbatches < ranks:
            assert expected in (found.name, *found.alternatives)
        else:
            assert found.name == expected
        assert found_sizes(found)[:2] == (ranks, microbatches)


def test_recognizes_orders_of_megatron_with_their_group_sizes():
    for ranks, microbatches, words in golden_cases("megatron_1f1b_vpp"):
        found = recognize(words)
        paired = any("+" in word for row in words.values() for word in row)
        expected = "1f1b" if found.parameters.chunks == 1 else "interleaved"
        assert found.name == (f"{expected}-overlap" if paired else expected)
        if (ranks, microbatches) == (4, 14):
            assert found.parameters.options == {"group_size": 5}


def test_defective_list_of_torch_is_unknown_with_its_fault():
    for ranks, microbatches, words in golden_cases("torch_1f1b"):
        found = recognize(words)
        last = ranks - 1
        assert (found.name, found.nearest) == ("unknown", "1f1b")
        assert found.faults == (
            f"rank {last} counts F{last} from 1 to {microbatches}, not from 0 to {microbatches - 1}",
        )
        assert found.faults[0] in found.evidence


def test_fused_backwards_distinguish_families_but_not_variants():
    fused = {
        rank: [str(each).replace("I", "B") for each in actions if each.kind != "W"]
        for rank, actions in order("zb-h1", ranks=4, microbatches=12).items()
    }
    found = recognize(fused)
    assert found.name == "1f1b"
    assert set(found.alternatives) == {"zb-h1", "zb-1p", "interleaved-zb"}
    assert found.margin > 0.1
    assert "differs only in where weight gradients run" in found.evidence


def test_full_backwards_equal_adjacent_halves():
    halves = {
        rank: [half for each in actions for half in (
            [f"I{each.stage}.{each.microbatch}", f"W{each.stage}.{each.microbatch}"] if each.kind == "B" else [each])]
        for rank, actions in order("1f1b", ranks=4, microbatches=8).items()
    }  # fmt: skip
    found = recognize(halves)
    assert (found.name, found.distance, found.alternatives) == ("1f1b", 0, ())


def test_recognizes_overlapped_schedules_without_recorded_pairs():
    single = {
        rank: [action for each in actions for action in each.parts]
        for rank, actions in order("dualpipev", ranks=4, microbatches=10).items()
    }
    assert recognize(single).name == "dualpipev"


def test_accepts_pairs_with_the_backward_first():
    turned = {
        rank: ["+".join(str(each).split("+")[::-1]) for each in actions]
        for rank, actions in order("dualpipe", ranks=4, microbatches=12).items()
    }
    found = recognize(turned)
    assert (found.name, found.distance) == ("dualpipe", 0)


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(NAMES), labels=st.permutations(range(4)), offset=st.integers(0, 64))
def test_labels_and_sequence_of_ranks_do_not_matter(name, labels, offset):
    orders = order(name, ranks=4, microbatches=8)
    relabeled = {
        labels[rank] + offset: orders[rank] for rank in sorted(orders, key=lambda rank: labels[rank])
    }
    assert recognize(relabeled) == recognize(orders)


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**16))
def test_text_equals_actions_and_recovered_parameters_rebuild_the_order(name, seed):
    ranks = random.Random(seed).choice((2, 4, 6))
    orders = order(name, ranks=ranks, microbatches=2 * ranks)
    found = recognize({rank: [str(each) for each in actions] for rank, actions in orders.items()})
    assert found == recognize(orders)
    rebuilt = order(found.name, ranks=found.parameters.ranks, microbatches=found.parameters.microbatches,
                    chunks=found.parameters.chunks, **found.parameters.options)  # fmt: skip
    assert recognize(rebuilt) == found


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**16))
def test_a_shuffled_order_is_unknown_and_cannot_run(name, seed):
    orders = order(name, ranks=4, microbatches=8)
    chance = random.Random(seed)
    found = recognize({rank: chance.sample(actions, len(actions)) for rank, actions in orders.items()})
    assert not found.known
    assert found.nearest in NAMES
    assert found.distance > 0.3
    assert "deadlocks" in found.faults[0]


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "interleaved", "v-half"])
def test_a_random_valid_order_is_unknown(name):
    random_one = run_at_random(order(name, ranks=4, microbatches=8), random.Random(5))
    found = recognize(random_one)
    assert not found.known
    assert found.faults == ()


def run_at_random(orders, chance):
    """Return a random order of the same actions without deadlock."""
    rows = {rank: [action for each in actions for action in each.parts] for rank, actions in orders.items()}
    stages = 1 + max(action.stage for row in rows.values() for action in row)
    done, run = set(), {rank: [] for rank in rows}
    while any(rows.values()):
        ready = [
            (rank, action) for rank, row in rows.items() for action in row if needs(action, stages) <= done
        ]
        rank, action = chance.choice(ready)
        rows[rank].remove(action)
        run[rank].append(action)
        done.add(("B" if action.kind == "I" else action.kind, action.stage, action.microbatch))
    return run


def needs(action, stages):
    _, stage, microbatch = action[:3]
    if action.kind == "F":
        return {("F", stage - 1, microbatch)} if stage else set()
    if action.kind == "W":
        return {("B", stage, microbatch)}
    return {("F", stage, microbatch)} | ({("B", stage + 1, microbatch)} if stage + 1 < stages else set())


def test_one_exchanged_action_keeps_the_name_and_is_counted():
    orders = order("1f1b", ranks=4, microbatches=16)
    orders[1][6:8] = orders[1][7:5:-1]
    found = recognize(orders)
    assert found.name == "1f1b"
    assert found.distance == 1 / 128
    assert "although 0.8% of the actions are at other positions" in found.evidence


def test_unknown_if_only_missing_actions_would_decide():
    orders = {0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "B1.1"]}
    found = recognize(orders)
    assert not found.known
    assert {found.nearest, *found.alternatives} >= {"gpipe", "1f1b"}
    assert ACTIONS_MISSING in {each.reason for each in found.indistinct}
    assert found.faults == ("invalid order: rank 1, F1.1: is missing",)


def test_a_missing_rank_counts_as_missing_actions():
    orders = order("1f1b", ranks=16, microbatches=20)
    del orders[3]
    found = recognize(orders)
    assert (found.name, found.parameters.ranks, found.missing_fraction) == ("1f1b", 16, 1 / 16)
    few = order("1f1b", ranks=4, microbatches=20)
    del few[1]
    found = recognize(few)
    assert (found.name, found.nearest, found.distance) == ("unknown", "1f1b", 0)
    assert "1 rank missing; 25.0% of the actions are missing" in found.evidence


def test_repeated_actions_are_misplaced_and_reported():
    orders = order("1f1b", ranks=4, microbatches=16)
    orders[2].append(parse_action("F2.3"))
    found = recognize(orders)
    assert (found.name, found.distance) == ("1f1b", 1 / 129)
    assert found.faults == ("rank 2 runs F2.3 2 times",)


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p", "zb-v"])
def test_recognizes_orders_searched_for_other_costs_by_traits(name):
    stages = 8 if name == "zb-v" else 4
    costs = Costs(
        forward=[100 + 7 * (stage % 3) for stage in range(stages)],
        backward_input=[120 - 5 * (stage % 4) for stage in range(stages)],
        backward_weight=[70 + 9 * (stage % 2) for stage in range(stages)],
        hop=11,
    )
    found = recognize(order(name, ranks=4, microbatches=20, costs=costs))
    assert name in (found.name, *found.alternatives)
    assert found.known
    if name != "zb-1p":
        assert (found.name, found.parameters.options) == (name, {})
        assert found.distance > 0
        assert f"{name} for unknown costs" in found.evidence


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ({}, "no rank ran any action"),
        ({0: [], 1: []}, "no rank ran any action"),
        ({0: ["F0.0", "B0.0"], 1: ["F0.1", "B0.1"]},
         "the placement of the stages matches no known schedule: rank 0 has 0; rank 1 has 0"),
    ],
)  # fmt: skip
def test_orders_without_a_pipeline_are_unknown_with_a_reason(orders, sentence):
    found = recognize(orders)
    assert (found.name, found.nearest, found.parameters) == ("unknown", "", None)
    assert found.evidence == sentence


def test_rejects_text_that_is_not_an_action():
    with pytest.raises(ScheduleError, match=r"invalid action 'G0\.0'"):
        recognize({0: ["F0.0", "G0.0"]})


def test_searches_for_a_large_order_only_if_nothing_else_fits(monkeypatch):
    searched = order("v-half", ranks=8, microbatches=24)
    monkeypatch.setattr("stagescope.schedules.recognition.comparison.LARGE_ORDER_ACTIONS", 100)
    assert recognize(searched).name == "v-half"
    fixed = recognize(order("zb-v", ranks=8, microbatches=24))
    assert fixed.name == "zb-v"
    assert fixed.alternatives == ()


@pytest.mark.parametrize("stages_of_rank", [lambda rank: (5 * rank,), lambda rank: (rank, 3 * rank + 2)])
def test_stages_that_fit_no_pipeline_are_tried_for_few_sizes(monkeypatch, stages_of_rank):
    ranks, placed = 800, []

    def counted(*arguments):
        placed.append(arguments)
        return stages_of(*arguments)

    monkeypatch.setattr(arrangement, "stages_of", counted)
    orders = {rank: [f"F{stage}.0" for stage in stages_of_rank(rank)] for rank in range(ranks)}
    assert recognize(orders).name == "unknown"
    # All of the hundred sizes with missing ranks were tried, with a position per rank: 90,000 calls and more.
    assert len(placed) < 5 * ranks


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("missing", [(), (0,), (3,), (7,), (2, 5)])
def test_size_of_a_pipeline_with_missing_ranks_follows_from_the_stages(placement, missing):
    ranks, chunks = 32, {"linear": 1, "loop": 3}.get(placement, 2)
    held = {
        rank: frozenset(stages_of(placement, ranks, chunks, rank))
        for rank in range(ranks)
        if rank not in missing
    }
    evidence = SimpleNamespace(
        held=held, orders={rank: SimpleNamespace(codes=()) for rank in held}, microbatches=4
    )
    found = [each.ranks for each in find_arrangements(evidence) if each.placement == placement]
    # Half of each pair is needed to see that a pipeline is bidirectional.
    assert found == ([] if placement == "bidirectional" and missing else [ranks])
