from dataclasses import replace

import polars as pl
import pytest

import planted_runs
from drawing import timeline_from_text
from machines import on_machines
from places import DATA
from stagescope.analysis import build_explained_report, intermediates
from stagescope.api import read, simulate
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from stagescope.reports.ledger_bars import ledger_rows
from stagescope.schedules import Costs, order
from stagescope.viewer.analysis_data import gather_extras, gather_layers
from stagescope.vocabulary.causes import WAIT_LABELS
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))


def test_idle_intervals_sum_to_the_bubble_of_every_rank():
    pieces = gather_extras(RUN).idle.with_columns(long=pl.col("end_ns") - pl.col("start_ns"))
    idle = step_bubbles(RUN.spans, find_pipelines(RUN.spans, RUN.ranks)).sort("rank", "step")
    of_rank = pieces.group_by("rank", "step").agg(pl.sum("long")).sort("rank", "step")
    assert of_rank["long"].to_list() == idle["idle_ns"].to_list()
    assert set(pieces["waiting_for"]) <= set(WAIT_LABELS)


def test_idle_intervals_wait_for_actions_of_other_ranks():
    idle = gather_extras(RUN).idle.drop_nulls("waits_for")
    kinds = RUN.spans[idle["waits_for"].to_list()]
    assert set(kinds["kind"]) == {"forward", "backward"}
    assert (kinds["rank"] != idle["rank"]).all()


def test_a_rank_that_is_done_waits_for_the_last_action_of_its_step():
    done = gather_extras(RUN).idle.filter(pl.col("waiting_for") == "nothing")
    assert set(done["rank"]) == {1, 2, 3}
    last = RUN.spans[done["waits_for"].to_list()]
    assert last["step"].equals(done["step"])
    ends = (
        done.with_columns(last_ns=last["end_ns"])
        .group_by("rank", "step")
        .agg(pl.max("end_ns"), pl.max("last_ns"))
    )
    assert ends["end_ns"].equals(ends["last_ns"], check_names=False)


def test_idle_intervals_have_the_causes_and_culprits_of_the_report():
    idle, expected = gather_extras(RUN).idle, build_explained_report(RUN).idle
    assert idle["cause"].to_list() == expected["cause"].cast(pl.String).to_list()
    assert idle["culprit"].to_list() == expected["culprit_row"].to_list()


@pytest.mark.parametrize("run", [RUN, planted_runs.run(planted_runs.random_times(planted_runs.Shape()))])
def test_what_causes_come_from_sums_to_the_causes(run):
    parts = {part["name"]: part for part in gather_extras(run).objects["ledger"]["parts"]}
    opened = {name: part["origins"] for name, part in parts.items() if part["origins"]}
    assert set(opened) >= {"schedule_bubble", "exposed_communication", "unattributed"}
    for name, origins in opened.items():
        assert sum(each["ns"] for each in origins) == parts[name]["ns"]
    links = {(each["rank"], each["peer"]) for each in opened["exposed_communication"]}
    assert {(2, 3), (3, 2)} <= links
    assert all(each["rank"] is None for each in opened["schedule_bubble"])


def test_the_verdict_is_that_of_the_report():
    verdict = gather_extras(RUN).objects["verdict"]
    expected = build_explained_report(RUN).verdict
    assert verdict == {
        "why": expected.why,
        "improvement": expected.improvement,
        "tested": expected.tested,
        "findings": list(expected.findings),
    }
    assert "4 stages x 8 micro-batches" in verdict["why"]


@pytest.mark.parametrize(
    "name", ["find_actions", "find_replay_basis", "find_idle_intervals", "build_ledger", "lay_ideal"]
)
def test_shared_intermediates_are_computed_once(name, monkeypatch):
    asked = []
    found = getattr(intermediates, name)
    monkeypatch.setattr(
        intermediates, name, lambda *given, **options: asked.append(name) or found(*given, **options)
    )
    gather_extras(RUN)
    assert asked == [name]


def test_pipelines_that_are_not_on_one_clock_are_left_out_and_the_others_name_the_right_spans():
    text = "F0.0 . . B0.0\n. F1.0 B1.0 ."
    both = timeline_from_text(f"{text}\n{text}")
    coordinates = {"dp": [0, 0, 1, 1], "pp": [0, 1, 0, 1], "tp": [0] * 4, "cp": [0] * 4}
    placed = [pl.Series(column, values, pl.Int32) for column, values in coordinates.items()]
    replicas = replace(both, ranks=both.ranks.with_columns(placed))
    machines = {0: "a", 1: "c", 2: "a", 3: "b"}
    extras = gather_extras(on_machines(replicas, machines, {"a": (0, 0), "b": (-5, 5), "c": None}))
    assert set(extras.idle["rank"]) == {2, 3}
    waits = extras.idle.filter(pl.col("waiting_for") == "compute").sort("start_ns")
    waited = both.spans[waits["waits_for"].to_list()].select("rank", "kind").rows()
    assert waited == [(2, "forward"), (3, "backward")]
    path = both.spans[extras.critical_path["row"].to_list()]
    assert set(path["rank"]) == {2, 3}
    assert path["start_ns"].is_sorted()


def test_without_a_common_clock_there_is_only_a_verdict():
    two = timeline_from_text("F0 . . B0\n. F0 B0 .")
    extras = gather_extras(on_machines(two, {0: "a", 1: "b"}, {"a": (0, 0), "b": None}))
    assert (extras.idle, extras.critical_path, extras.ideal) == (None, None, None)
    assert list(extras.objects) == ["verdict"]
    assert "No pipeline has all its machines on one clock" in extras.objects["verdict"]["why"]


def test_the_ledger_adds_up_to_the_time_of_the_steps():
    ledger = gather_extras(RUN).objects["ledger"]
    assert sum(part["ns"] for part in ledger["parts"]) == ledger["total_ns"]
    assert all(part["meaning"] for part in ledger["parts"])


def test_the_ledger_has_the_values_of_the_printed_report():
    lost = build_explained_report(RUN).explanation.lost_time
    ledger = gather_extras(RUN).objects["ledger"]
    shown = {part["label"]: part["ns"] for part in ledger["parts"]}
    assert ledger["denominator"] == lost.denominator
    *causes, _ = ledger_rows(lost)
    compute_ns = shown.pop("compute")
    assert shown == {label: time_ns for label, _, time_ns in causes}
    assert abs(compute_ns - (lost.whole_ns - lost.lost_ns) // lost.rows) <= len(causes)


def test_the_ideal_is_the_same_actions_and_ends_no_later():
    ideal = gather_extras(RUN).ideal
    actions = RUN.spans.filter(pl.col("kind").is_in(["forward", "backward"]))
    key = ["rank", "kind", "step", "stage", "microbatch"]
    assert ideal.select(key).sort(key).equals(actions.select(key).sort(key))
    lasts = ideal.group_by("step").agg(pl.max("end_ns")).sort("step")["end_ns"]
    assert (lasts <= actions.group_by("step").agg(pl.max("end_ns")).sort("step")["end_ns"]).all()


def test_run_without_spans_has_no_layers():
    extras = gather_extras(empty_timeline())
    assert (extras.idle, extras.critical_path, extras.ideal, dict(extras.objects)) == (None, None, None, {})


def test_single_rank_waits_for_no_other_rank():
    extras = gather_extras(timeline_from_text("F0 B0 . F1 B1"))
    assert extras.idle["waits_for"].null_count() == extras.idle.height


def test_the_layers_of_a_picture_are_those_of_its_step_in_the_viewer():
    layers, extras = gather_layers(RUN, 2), gather_extras(RUN)
    inner = extras.idle.filter(pl.col("step") == 2, pl.col("waiting_for") != "nothing")
    assert layers.idle.equals(inner.select(layers.idle.columns))
    in_step = RUN.spans.with_row_index("row").filter(pl.col("step") == 2)["row"].implode()
    path = extras.critical_path.filter(pl.col("row").is_in(in_step))
    assert layers.critical_path["row"].to_list() == path["row"].to_list()


def test_a_picture_of_theory_has_no_layers():
    step = simulate(order("1f1b", ranks=2, microbatches=4), Costs(forward=10, backward=20))
    layers = gather_layers(step.timeline)
    assert (layers.idle, layers.critical_path) == (None, None)
    assert gather_layers(empty_timeline()).idle is None


def test_uncertain_clocks_show_neither_causes_nor_a_critical_path():
    run = read(DATA / "recordings" / "v1")
    error_ns = pl.lit(10**9, run.clocks.schema["estimated_error_ns"])
    uncertain = replace(run, clocks=run.clocks.with_columns(estimated_error_ns=error_ns))
    extras, layers = gather_extras(uncertain), gather_layers(uncertain)
    assert "may be off by more than half" in extras.objects["verdict"]["why"]
    assert extras.bubbles is not None
    for found in (extras, layers):
        assert found.idle is None
        assert found.critical_path is None
    assert gather_extras(run).idle.height
