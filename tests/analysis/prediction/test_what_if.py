import polars as pl
import pytest
from hypothesis import given, settings

from delayed_runs import example_timeline, run, run_rows
from drawing import timeline_from_text
from explained_runs import schedule_run, with_wrong_clock
from places import DATA
from random_pipelines import arbitrary_timelines, one_f_one_b, simulated_timelines, timeline_of
from stagescope import api, schedules
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.prediction.changes import EqualStages, FreeTransfers, OtherSchedule, Slower
from stagescope.analysis.prediction.mean_costs import HALVED
from stagescope.analysis.prediction.what_if import WHAT_IF, predict_steps
from stagescope.model import empty_timeline
from stagescope.vocabulary.errors import ScheduleError

MS = 1_000_000
ORDER = one_f_one_b(4, 8)


def unit(action, _rank):
    return (10 if action.kind == "F" else 20) * MS


def predict(timeline, *changes, steps=None):
    return predict_steps(find_actions(timeline), [changes], steps).table.row(0, named=True)


@settings(deadline=None, max_examples=25)
@given(simulated_timelines() | arbitrary_timelines())
def test_no_change_changes_nothing(timeline):
    row = predict(timeline, Slower(factor=1.0))
    if find_actions(timeline).is_contradictory:
        assert (row["predicted_step_ns"], row["note"]) == (
            None,
            "timestamps contradict the order of the actions",
        )
        return
    assert row["predicted_step_ns"] == pytest.approx(row["measured_step_ns"])
    assert row["gain_ns"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (Slower(factor=1.5, stage=2), lambda action, rank: 1.5 if action.stage == 2 else 1),
        (Slower(factor=0.5, stage=2), lambda action, rank: 0.5 if action.stage == 2 else 1),
        (Slower(factor=1.3, rank=1), lambda action, rank: 1.3 if rank == 1 else 1),
        (Slower(factor=2.0, kind="backward"), lambda action, rank: 2 if action.kind == "B" else 1),
        (Slower(factor=1.2), lambda action, rank: 1.2),
        (
            Slower(factor=1.4, stage=0, kind="forward"),
            lambda action, rank: 1.4 if str(action).startswith("F0") else 1,
        ),
    ],
)
def test_changed_run_takes_exactly_as_long_as_predicted(change, factor):
    options = {"hop_ns": 3 * MS, "launch_delay_ns": MS, "steps": 2}
    before = run(ORDER, unit, **options)
    after = run(ORDER, lambda action, rank: round(unit(action, rank) * factor(action, rank)), **options)
    really_ns = predict(after)["measured_step_ns"]
    row = predict(before, change)
    assert row["predicted_step_ns"] == pytest.approx(really_ns)
    assert row["gain_ns"] == row["measured_step_ns"] - row["predicted_step_ns"]
    assert row["gain_fraction"] == pytest.approx(row["gain_ns"] / row["measured_step_ns"])
    assert (row["method"], row["condition"], row["note"]) == ("replay", "", None)


def test_free_transfers_keep_launch_delays():
    options = {"launch_delay_ns": MS, "steps": 2}
    with_transfers, without = (run(ORDER, unit, hop_ns=hop_ns, **options) for hop_ns in (4 * MS, 0))
    row = predict(with_transfers, FreeTransfers())
    assert row["predicted_step_ns"] == pytest.approx(predict(without)["measured_step_ns"])


def test_equal_stages_cost_their_mean():
    def unequal(action, rank):
        return unit(action, rank) * (2 if rank == 2 else 1)

    row = predict(run(ORDER, unequal), EqualStages())
    assert row["predicted_step_ns"] == pytest.approx(11 * 37.5 * MS)
    assert row["gain_ns"] > 0


def test_combined_changes_are_made_together():
    timeline = run(ORDER, unit, hop_ns=3 * MS)
    row = predict(timeline, Slower(factor=1.5), FreeTransfers())
    assert row["predicted_step_ns"] == pytest.approx(11 * 45 * MS)
    assert row["change"] == "everything 50 % slower; transfers take no time"


def test_pair_changes_with_one_of_its_actions_by_what_that_takes_alone():
    timeline = run({0: ["F0.0", "F0.1+B0.0", "B0.1"]}, unit)
    forward, backward = (
        predict(timeline, Slower(factor=2.0, kind=kind))["gain_ns"] for kind in ("forward", "backward")
    )
    assert forward == pytest.approx(-(10 + 20 * 10 / (10 + 20)) * MS)
    assert backward == pytest.approx(-(20 * 20 / (10 + 20) + 20) * MS)
    assert predict(timeline, Slower(factor=2.0, rank=0))["gain_ns"] == -(10 + 20 + 20) * MS


def test_longest_pipeline_is_the_step():
    timeline = example_timeline(({}, {"1": 1.15}, {"1": 1.15}))
    row = predict(timeline, Slower(factor=0.9, rank=9))
    assert row["gain_ns"] == 0  # rank 9 is not in the pipeline that is waited for


def test_only_counted_steps_are_in_the_mean():
    timeline = run(ORDER, unit, steps=3)
    slow = timeline.spans.with_columns(
        end_ns=pl.when(
            (pl.col("step") == 0) & (pl.col("end_ns") == pl.col("end_ns").filter(pl.col("step") == 0).max())
        )
        .then(pl.col("end_ns") + 500)
        .otherwise("end_ns")
    )
    timeline = timeline.with_spans(slow)
    usual = predict(timeline, steps=[1, 2])["measured_step_ns"]
    assert predict(timeline, steps=[0])["measured_step_ns"] == usual + 500
    assert predict(timeline)["measured_step_ns"] == pytest.approx(usual + 500 / 3)


def test_other_schedule_saves_what_theory_predicts():
    row = predict(run(ORDER, unit), OtherSchedule("zb-h1"))
    assert row["gain_ns"] == pytest.approx(60 * MS)  # 3 * 30 of 1F1B against 3 * 10
    assert (row["method"], row["condition"]) == ("simulation", HALVED)
    assert row["note"] == "simulated 270 ms, compared with 330 ms for the measured order"


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (schedule_run("1f1b"), "gpipe", schedule_run("gpipe")),
        (
            schedule_run("1f1b"),
            "interleaved",
            schedule_run("interleaved", slower=dict.fromkeys(range(8), 0.5)),
        ),
        (schedule_run("interleaved"), "interleaved-zb", schedule_run("interleaved-zb")),
    ],
    ids=["same stages", "stages cut in two", "backwards split"],
)
def test_run_of_another_schedule_takes_exactly_as_long_as_predicted(before, name, after):
    assert predict(before, OtherSchedule(name))["predicted_step_ns"] == pytest.approx(
        predict(after)["measured_step_ns"]
    )


def test_other_schedule_with_changed_costs_is_compared_with_measured_costs():
    row = predict(run(ORDER, unit), Slower(factor=0.5), OtherSchedule("1f1b"))
    assert row["gain_ns"] == pytest.approx(11 * 15 * MS)


def test_simulation_includes_launch_delays_and_transfers():
    timeline = run(ORDER, unit, hop_ns=2 * MS, launch_delay_ns=MS)
    assert abs(predict(timeline, OtherSchedule("1f1b"))["gain_ns"]) < 1
    really_ns = predict(run({r: _gpipe(r) for r in range(4)}, unit, hop_ns=2 * MS, launch_delay_ns=MS))[
        "measured_step_ns"
    ]
    # GPipe hides the transfers that 1F1B waits for in its steady phase.
    predicted = predict(timeline, OtherSchedule("gpipe"))
    assert predicted["predicted_step_ns"] == pytest.approx(really_ns, rel=0.01)
    assert predicted["gain_ns"] > 0


def _gpipe(rank):
    return [f"{letter}{rank}.{microbatch}" for letter in "FB" for microbatch in range(8)]


def test_impossible_prediction_has_a_reason():
    row = predict(timeline_from_text("F0 F1\n. F0 F1"), OtherSchedule("1f1b"))
    assert row["predicted_step_ns"] is row["gain_ns"] is row["gain_fraction"] is None
    assert row["note"]
    nothing = predict(empty_timeline(), OtherSchedule("1f1b"))
    assert (nothing["predicted_step_ns"], nothing["note"]) == (None, "no step is counted")


def test_unsupported_schedule_is_an_error():
    with pytest.raises(ScheduleError):
        predict(run(ORDER, unit), OtherSchedule("nonsense"))
    with pytest.raises(ScheduleError):
        predict(run(one_f_one_b(3, 4), unit), OtherSchedule("dualpipe"))


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_shifting_all_clocks_changes_no_prediction(timeline):
    moved = timeline.with_spans(
        timeline.spans.with_columns(pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns") + 10**15)
    )
    asked = [(EqualStages(),), (FreeTransfers(),), (Slower(factor=1.25, stage=0),)]
    tables = [predict_steps(find_actions(each), asked).table for each in (timeline, moved)]
    assert tables[0].equals(tables[1])


def test_empty_input_gives_an_empty_table():
    asked = predict_steps(find_actions(empty_timeline()), [])
    assert dict(asked.table.schema) == dict(WHAT_IF.schema)
    row = predict(empty_timeline(), EqualStages())
    assert (row["measured_step_ns"], row["gain_fraction"]) == (0, None)


def test_change_without_matching_action_has_no_prediction():
    row = predict(run(ORDER, unit), Slower(factor=0.9, stage=9))
    assert row["predicted_step_ns"] is None
    assert row["note"] == "no counted action has that stage, rank or kind"
    nothing = predict(empty_timeline(), Slower(factor=1.5, rank=1))
    assert nothing["predicted_step_ns"] is None


def test_no_prediction_from_contradictory_timestamps():
    row = predict(with_wrong_clock(api.read(DATA / "recordings" / "v1")), FreeTransfers())
    assert row["measured_step_ns"] > 0
    assert (row["predicted_step_ns"], row["gain_ns"]) == (None, None)
    assert "contradict the order of the actions" in row["note"]


@pytest.mark.parametrize("first", [0, 2])
def test_gain_of_a_schedule_is_the_mean_over_evaluations_and_steps_of_all_sizes(first):
    def rows_of(name, size, **options):
        count, is_evaluation = size
        chosen = "F" if is_evaluation else "FBIW"
        order = {
            rank: [text for text in map(str, actions) if text[0] in chosen]
            for rank, actions in schedules.order(name, ranks=4, microbatches=count).items()
        }
        return run_rows(order, lambda part, _: (20 if part.kind == "B" else 10) * MS, **options)

    sizes = [(8, True), (8, False), (4, False), (8, False), (8, False), (8, True)]
    rows, expected_ns = [], 0.0
    for step, size in enumerate(sizes[first:] + sizes[:first]):
        rows += rows_of("1f1b", size, step=step, start_ns=max((row["end_ns"] for row in rows), default=0))
        expected_ns += max(row["end_ns"] for row in rows_of("zb-h1", size)) / len(sizes)
    predicted = predict(timeline_of(rows, 4), OtherSchedule("zb-h1"))
    assert predicted["predicted_step_ns"] == pytest.approx(expected_ns)
