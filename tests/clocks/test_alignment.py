from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from planted_clocks import ClockStep, Plan, plant, plant_graph, uncovered
from stagescope.clocks import align_clocks
from stagescope.model import CLOCKS, RANKS, empty_timeline
from stagescope.model.validate import conform


def exhaustive(*seeds):
    return [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in seeds]


SCENARIOS = {
    "base": Plan(),
    "asymmetric path": Plan(asymmetry_ns=40_000),
    "5 ppm wander": Plan(wander_ppm=5.0),
    "three steps": Plan(steps=3),
    "three steps, wander": Plan(steps=3, wander_ppm=5.0),
    "clock set ahead": Plan(clock_steps=(ClockStep(2, 0.4, 300_000),)),
    "clock set back": Plan(clock_steps=(ClockStep(1, 0.6, -1_000_000),)),
    "two clocks set": Plan(clock_steps=(ClockStep(1, 0.3, -500_000), ClockStep(3, 0.7, 800_000))),
    "reference set": Plan(clock_steps=(ClockStep(0, 0.5, -1_000_000),)),
    "reference set by what no message shows": Plan(steps=10, clock_steps=(ClockStep(0, 0.5, -60_000),)),
    "reference of two set": Plan(ranks=2, steps=10, clock_steps=(ClockStep(0, 0.5, 1_000_000),)),
    "set at the very end": Plan(steps=12, clock_steps=(ClockStep(3, 0.97, 400_000),)),
    "set at the beginning": Plan(steps=12, clock_steps=(ClockStep(1, 0.03, 400_000),)),
    "set by what no message shows": Plan(steps=12, clock_steps=(ClockStep(2, 0.5, 30_000),)),
    "2% corrupt": Plan(corrupt=0.02),
    "5% corrupt": Plan(corrupt=0.05),
    "5% corrupt, three steps": Plan(steps=3, corrupt=0.05),
    "5% corrupt by little": Plan(steps=10, corrupt=0.05, corrupt_ns=(50_000, 1_000_000)),
    "3% corrupt and a clock set": Plan(steps=15, corrupt=0.03, clock_steps=(ClockStep(2, 0.5, 700_000),)),
    "mismatched messages": Plan(mismatched=0.01),
    "lost messages": Plan(lost=0.2),
    "missing link": Plan(missing_links=((1, 2),)),
    "one way only": Plan(one_way_links=((1, 2),)),
    "actions only": Plan(actions_only=True),
    "interleaved": Plan(schedule="interleaved"),
    "zero bubble": Plan(schedule="zb-h1"),
    "interleaved, wrap-around hops between two machines": Plan(
        schedule="interleaved", ranks_per_machine=2, steps=6, clock_steps=(ClockStep(1, 0.4, 300_000),)
    ),
    "zero bubble in V": Plan(schedule="zb-v"),
    "DualPipeV": Plan(schedule="dualpipev", steps=6, wander_ppm=5.0),
    "one step": Plan(steps=1),
    "replicas": Plan(replicas=2, ranks=2),
    "hours apart": Plan(steps=5, offset_ns=7_200_000_000_000),
}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", [11, *exhaustive(12)])
def test_every_timestamp_is_within_its_guaranteed_bound(name, seed):
    planted = plant(replace(SCENARIOS[name], seed=seed))
    aligned = align_clocks(planted.timeline)
    assert uncovered(planted, aligned.timeline).is_empty()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    machines=st.integers(2, 6),
    links=st.integers(1, 9),
    messages=st.integers(1, 40),
)
def test_any_graph_of_correct_timestamps_is_bounded_without_findings(seed, machines, links, messages):
    planted = plant_graph(seed, machines=machines, links=links, messages=messages)
    aligned = align_clocks(planted.timeline)
    assert uncovered(planted, aligned.timeline).is_empty()
    assert not aligned.clocks.adjustments
    assert not aligned.clocks.outliers
    assert not aligned.clocks.inconsistent_pairs


# Derandomized: an outlier too small to contradict anything is not covered (docs/clocks.md), and among thousands of
# runs there is one whose only outlier is of that kind.
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 6),
    corrupt=st.sampled_from([0.0, 0.005, 0.02, 0.05]),
    wander_ppm=st.sampled_from([0.0, 5.0]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "zb-v"]),
)
def test_any_short_run_is_within_its_guaranteed_bounds(seed, steps, corrupt, wander_ppm, schedule):
    plan = Plan(
        schedule=schedule, steps=steps, microbatches=8, corrupt=corrupt, wander_ppm=wander_ppm, seed=seed
    )
    planted = plant(plan)
    assert uncovered(planted, align_clocks(planted.timeline).timeline).is_empty()


def errors_us(plan: Plan) -> pl.DataFrame:
    """Return the worst and the median error of every clock except the reference."""
    planted = plant(plan)
    errors = planted.errors_ns(align_clocks(planted.timeline).timeline).filter(
        pl.col("clock") != "node-0/wall"
    )
    size = pl.col("error_ns").abs() / 1e3
    return errors.group_by("clock").agg(worst=size.max(), median=size.median())


@pytest.mark.parametrize("seed", [301, 302, *exhaustive(303, 304, 305, 306)])
def test_recovers_planted_offsets_and_drift_within_the_stated_figures(seed):
    found = errors_us(Plan(seed=seed))
    assert found["worst"].max() <= 20
    assert found["median"].median() <= 3


@pytest.mark.parametrize("seed", [301, *exhaustive(302, 303)])
def test_recovers_sixteen_stages_on_eight_machines_that_drift_by_50_ppm(seed):
    found = errors_us(Plan(seed=seed, ranks=16, ranks_per_machine=2, drift_ppm=50.0))
    assert found["worst"].max() <= 15


@pytest.mark.parametrize(
    ("size_ns", "machine"), [(300_000, 2), (-300_000, 1), (3_000_000, 1), (-1_000_000, 2)]
)
def test_finds_a_clock_adjustment_and_the_machine_that_was_set(size_ns, machine):
    planted = plant(Plan(seed=77, clock_steps=(ClockStep(machine, 0.5, size_ns),)))
    (step,) = align_clocks(planted.timeline).clocks.adjustments
    assert step.clock == f"node-{machine}/wall"
    assert step.size_ns == pytest.approx(size_ns, abs=20_000)


def test_both_machines_are_candidates_if_there_are_only_two():
    planted = plant(Plan(ranks=2, steps=10, seed=77, clock_steps=(ClockStep(0, 0.5, 1_000_000),)))
    aligned = align_clocks(planted.timeline)
    (step,) = aligned.clocks.adjustments
    assert step.candidates == ("node-1/wall", "node-0/wall")
    assert step.size_ns == pytest.approx(-1_000_000, abs=20_000)


def test_a_single_clock_is_not_changed():
    planted = plant(Plan(ranks_per_machine=4, steps=2))
    aligned = align_clocks(planted.timeline)
    assert aligned.timeline.spans is planted.timeline.spans
    assert aligned.clocks.machines == ()


def test_ranks_without_clocks_are_not_changed():
    timeline = timeline_from_text("F0 F1 . B0\n. F0 B0 .")
    assert align_clocks(timeline).timeline.spans is timeline.spans
    empty = empty_timeline()
    assert align_clocks(empty).timeline.spans is empty.spans


def test_a_shifted_rank_of_a_drawing_is_shifted_back():
    drawing = timeline_from_text("F0 F1 .  .  B0 B1\n.  F0 F1 B0 B1 . ")
    ranks = drawing.ranks.with_columns(
        clock=pl.Series(["left", "right"]), dp=0, tp=0, cp=0, pp=pl.Series([0, 1])
    )
    moved = pl.when(pl.col("rank") == 1).then(500_000).otherwise(0)
    spans = drawing.spans.with_columns(pl.col("start_ns") + moved, pl.col("end_ns") + moved)
    aligned = align_clocks(replace(drawing, spans=spans, ranks=conform(ranks, RANKS)))
    machine = aligned.clocks.machines[1]
    assert machine.state == "aligned"
    # F0 -> F0 leaves no margin in one direction and B0 -> B0 none in the other: exact except for the drift budget.
    assert aligned.timeline.spans["start_ns"].to_list() == pytest.approx(
        drawing.spans["start_ns"].to_list(), abs=5
    )


def test_shifting_all_clocks_alike_changes_no_result():
    planted = plant(Plan(steps=4, seed=3))
    shift_ns = 123_456_789_012_345
    moved = planted.timeline.spans.with_columns(
        pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns") + shift_ns
    )
    one = align_clocks(planted.timeline)
    other = align_clocks(planted.timeline.with_spans(moved))
    assert other.clocks == one.clocks
    assert (other.timeline.spans["start_ns"] - shift_ns).equals(one.timeline.spans["start_ns"])


def test_permuting_machine_names_permutes_the_results():
    planted = plant(Plan(steps=4, seed=4))
    names = {"node-0": "c", "node-1": "a", "node-2": "d", "node-3": "b"}
    renamed = replace(
        planted.timeline,
        ranks=planted.timeline.ranks.with_columns(
            pl.col("machine").replace_strict(names), pl.col("clock").str.slice(0, 6).replace_strict(names)
        ),
        clocks=CLOCKS.empty(),
    )
    one, other = align_clocks(planted.timeline), align_clocks(renamed)
    assert other.timeline.spans.equals(one.timeline.spans)
    assert [names[m.machine] for m in one.clocks.machines] == [m.machine for m in other.clocks.machines]


def test_durations_change_only_by_drift_and_order_within_a_rank_is_kept():
    planted = plant(Plan(steps=6, drift_ppm=50.0, seed=5))
    before, after = planted.timeline.spans, align_clocks(planted.timeline).timeline.spans
    assert before["name"].equals(after["name"])
    lengths = pl.DataFrame(
        {"a": before["end_ns"] - before["start_ns"], "b": after["end_ns"] - after["start_ns"]}
    )
    allowed = 200e-6 * pl.col("a") + 2
    assert lengths.filter((pl.col("a") - pl.col("b")).abs() > allowed).is_empty()


@pytest.mark.parametrize("size_ns", [300_000, -300_000, 3_000_000])
def test_order_within_a_rank_is_kept_around_a_clock_adjustment(size_ns):
    planted = plant(Plan(seed=9, steps=12, clock_steps=(ClockStep(2, 0.5, size_ns),)))
    after = align_clocks(planted.timeline).timeline.spans
    for rank in range(4):
        names = planted.truth.filter(pl.col("rank") == rank)["name"]
        assert after.filter(pl.col("rank") == rank)["name"].equals(names)


def test_machines_without_messages_between_them_are_not_aligned():
    planted = plant(Plan(missing_links=((1, 2),), steps=4))
    aligned = align_clocks(planted.timeline)
    states = [machine.state for machine in aligned.clocks.machines]
    assert states == ["reference", "aligned", "unaligned", "unaligned"]
    unaligned = aligned.clocks.machines[3]
    assert (unaligned.error_lo_ns, unaligned.error_hi_ns, unaligned.group) == (None, None, "node-2/wall")
    raw = planted.timeline.spans.filter(pl.col("rank") == 2)
    assert aligned.timeline.spans.filter(pl.col("rank") == 2).equals(raw)
    assert "warning" in aligned.timeline.diagnostics["severity"]


def test_one_way_messages_bound_one_side_only():
    planted = plant(Plan(one_way_links=((1, 2),), steps=4))
    machines = align_clocks(planted.timeline).clocks.machines
    assert [machine.state for machine in machines] == ["reference", "aligned", "one-sided", "one-sided"]
    assert [(m.error_lo_ns is None) != (m.error_hi_ns is None) for m in machines[2:]] == [True, True]


def test_inconsistent_pairs_name_the_machines_and_observations():
    planted = plant(Plan(steps=4))
    bad = (pl.col("kind") == "recv_backward") & (pl.col("rank") == 1)
    # Every other message seems to arrive a second before it was sent: neither an adjustment nor outliers explain it.
    bad &= pl.col("microbatch") % 2 == 0
    spans = planted.timeline.spans.with_columns(
        end_ns=pl.when(bad).then(pl.col("end_ns") - 1_000_000_000).otherwise("end_ns")
    )
    aligned = align_clocks(planted.timeline.with_spans(spans))
    (pair,) = aligned.clocks.inconsistent_pairs
    assert pair.clocks == ("node-1/wall", "node-2/wall")
    assert {str(one).split(" of ")[0] for one in pair.observations} == {"message"}
    assert [machine.state for machine in aligned.clocks.machines] == [
        "reference",
        "aligned",
        "unaligned",
        "unaligned",
    ]


def test_an_asymmetric_path_shifts_the_estimate_by_half_within_the_bound():
    planted = plant(Plan(ranks=2, asymmetry_ns=40_000, seed=8))
    aligned = align_clocks(planted.timeline)
    errors = planted.errors_ns(aligned.timeline).filter(pl.col("rank") == 1)["error_ns"].abs()
    assert errors.median() == pytest.approx(20_000, abs=5_000)
    assert uncovered(planted, aligned.timeline).is_empty()


def test_the_clocks_table_has_offset_and_bound_of_every_piece():
    planted = plant(Plan(steps=4))
    clocks = align_clocks(planted.timeline).timeline.clocks
    assert clocks["clock"].n_unique() == 4
    assert clocks["start_ns"].null_count() == clocks["error_lo_ns"].null_count() == 0
    assert (clocks["error_lo_ns"] <= 0).all()
    assert (clocks["error_hi_ns"] >= 0).all()
    assert (clocks["observation_count"] > 0).all()
    assert clocks.filter(pl.col("clock") == "node-0/wall")["offset_ns"].unique().to_list() == [0]
