"""Dumps of Primus: simulated schedules in the format of its pp_visualizer.py, and invalid dumps."""

import json
from pathlib import Path

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from primus_dumps import write_dumps
from stagescope import schedules
from stagescope.api import simulate
from stagescope.cli import main
from stagescope.ingest.primus.reader import READER
from stagescope.vocabulary.errors import InputError

MS = 1_000_000
COSTS = schedules.Costs(forward=10 * MS, backward=20 * MS, backward_input=12 * MS, backward_weight=8 * MS)
DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""


def planned(name, **options):
    return simulate(schedules.order(name, ranks=4, microbatches=8, **options), COSTS).timeline


@pytest.fixture
def drawn(tmp_path):
    return write_dumps(tmp_path / "pp_data", timeline_from_text(DRAWING, cell_ns=MS))


def actions(timeline):
    columns = ["rank", "stage", "chunk", "microbatch", "start_ns", "end_ns"]
    kept = timeline.spans.with_columns(pl.col("kind").cast(pl.String)).sort("rank", "start_ns", "kind")
    return kept.select("kind", *columns).rows()


def messages(timeline, severity):
    return timeline.diagnostics.filter(pl.col("severity") == severity)["message"].to_list()


def change(folder, rank, edit):
    """Edit the decoded dump of one rank."""
    path = folder / f"pp_rank_{rank}.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("schedule", "options", "numbered"),
    [
        ("1f1b", {}, False),
        ("interleaved", {"chunks": 2}, False),
        ("interleaved", {"chunks": 2}, True),
        ("zb-h1", {}, True),
        ("zb-v", {}, True),
        ("dualpipev", {}, True),
    ],
)
def test_recovers_stages_and_microbatches_of_a_schedule(tmp_path, schedule, options, numbered):
    plan = planned(schedule, **options)
    read = stagescope.read(write_dumps(tmp_path / "pp_data", plan, numbered=numbered))
    wanted = plan.with_spans(plan.spans.filter(~pl.col("kind").cast(pl.String).is_in(["optimizer", "loss"])))
    assert actions(read) == actions(wanted)
    assert read.ranks["pp"].to_list() == [0, 1, 2, 3]


def wanted_actions(plan):
    return actions(
        plan.with_spans(plan.spans.filter(~pl.col("kind").cast(pl.String).is_in(["optimizer", "loss"])))
    )


@pytest.mark.parametrize("schedule", ["zb-h1", "v-half", "v-min", "zbv_executed.txt"])
def test_unnumbered_weight_gradients_of_the_zero_bubble_runtime_follow_from_its_order(tmp_path, schedule):
    if schedule.endswith(".txt"):
        path = Path(__file__).parents[2] / "data" / "primus" / schedule
        plan = simulate(schedules.read_order(path).order, COSTS).timeline
    else:
        plan = planned(schedule)
    folder = write_dumps(tmp_path / "pp_data", plan, numbered="passes", iterations=2)
    read = stagescope.read(folder)
    assert actions(read.with_spans(read.spans.filter(pl.col("step") == 1))) == wanted_actions(plan)
    assert "backward" not in read.spans["kind"].cast(pl.String).to_list()
    assert "weights.unnumbered" not in read.diagnostics["code"].to_list()


def test_weight_gradients_are_numbered_only_where_all_plans_agree_if_sizes_are_unknown(tmp_path):
    plan = planned("v-half")
    folder = write_dumps(tmp_path / "pp_data", plan, numbered="passes")
    (folder / "config.json").unlink()
    read = stagescope.read(folder)
    found = [row for row in actions(read) if row[0] == "backward_weight"]
    numbered = [row for row in found if row[4] is not None]
    assert set(numbered) < set(wanted_actions(plan))
    assert 0 < len(numbered) < len(found) == 4 * 2 * 8
    assert read.spans["kind"].cast(pl.String).is_in(["backward_input"]).sum() == 4 * 2 * 8
    notes = read.diagnostics.filter(pl.col("code") == "weights.unnumbered")
    assert notes["count"].sum() == len(found) - len(numbered)


def test_no_weight_gradient_is_numbered_if_one_is_missing(tmp_path):
    folder = write_dumps(tmp_path / "pp_data", planned("v-half"), numbered="passes")

    def remove(content):
        for side in ("start", "end"):
            del content["1"][f"wgrad_{side}"][3]

    change(folder, 1, remove)
    spans = stagescope.read(folder).spans.filter(pl.col("rank") == 1)
    weights = spans.filter(pl.col("kind") == "backward_weight")
    assert weights["microbatch"].null_count() == weights.height == 15
    assert spans.filter(pl.col("kind") == "backward_input").height == 16
    assert spans.filter(pl.col("kind") == "backward").is_empty()


def test_iterations_are_consecutive_steps(tmp_path):
    read = stagescope.read(write_dumps(tmp_path / "d", timeline_from_text(DRAWING, cell_ns=MS), iterations=3))
    assert read.steps.select("step", "rank", "start_ns", "end_ns").rows() == [
        (1, 0, 0, 6 * MS), (1, 1, 0, 5 * MS), (2, 0, 6 * MS, 12 * MS), (2, 1, 6 * MS, 11 * MS),
        (3, 0, 12 * MS, 18 * MS), (3, 1, 12 * MS, 17 * MS),
    ]  # fmt: skip


def test_the_missing_shared_clock_is_the_only_warning(drawn):
    read = stagescope.read(drawn)
    assert read.clocks.select("offset_ns", "error_hi_ns").rows() == [(0, None)]
    assert ["share no clock" in text for text in messages(read, "warning")] == [True]


def test_peak_memory_is_reported(drawn):
    assert messages(stagescope.read(drawn), "info") == [
        "peak memory reserved by torch: rank 0 41.2 GB, rank 1 41.2 GB"
    ]


def test_a_combined_forward_and_backward_is_a_pair(drawn):
    def combine(content):
        one = content["1"]
        one["fwd_start"][1], one["fwd_end"][1] = one["bwd_start"][0], one["bwd_end"][0]

    change(drawn, 1, combine)
    pairs = stagescope.read(drawn).spans.filter(pl.col("pair").is_not_null())
    assert pairs.select("rank", "microbatch").rows() == [(1, 1), (1, 0)]
    assert pairs["pair"].n_unique() == 1


def test_microbatches_counted_from_one_and_older_size_names_are_read(drawn):
    def number(content):
        content["1"] |= {f"{s}_minibatch": [1, 2] for s in ("fwd", "bwd")}
        content["1"] |= {f"{s}_chunk": [0, 0] for s in ("fwd", "bwd")}

    change(drawn, 0, number)
    config = {
        "world_size": 2,
        "dp_size": 1,
        "pp_size": 2,
        "vpp_size": 1,
        "micro_batches": 2,
        "train_iters": 1,
    }
    (drawn / "config.json").write_text(json.dumps(config))
    assert stagescope.read(drawn).spans.filter(pl.col("rank") == 0)["microbatch"].to_list() == [0, 1, 0, 1]


def test_the_config_file_may_be_given_instead_of_its_directory(drawn, capsys):
    assert main(["show", str(drawn / "config.json"), "--ascii"]) == 0
    assert capsys.readouterr().out.startswith("Pipeline, 2 ranks, 2 micro-batches, step 1, bubble ")


def test_dumps_without_a_config_are_read_with_a_warning(drawn):
    (drawn / "config.json").unlink()
    read = stagescope.read(drawn)
    assert read.spans.height == 8
    assert any("no usable config.json" in text for text in messages(read, "warning"))


def test_missing_ranks_and_iterations_are_errors_and_the_rest_is_read(tmp_path):
    folder = write_dumps(tmp_path / "d", planned("1f1b"), iterations=3)
    (folder / "pp_rank_2.json").unlink()
    change(folder, 1, lambda content: content.pop("2"))
    read = stagescope.read(folder)
    assert sorted(messages(read, "error")) == [
        "iterations that other ranks have are missing: 2",
        "no recording of rank 2: the run declared 4 ranks",
    ]


def test_actions_with_invalid_times_are_dropped_and_counted(drawn):
    def spoil(content):
        content["1"]["fwd_end"][0] = float("nan")
        content["1"]["bwd_start"][0] = 1e300
        content["1"]["bwd_end"] = content["1"]["bwd_end"][:1]

    change(drawn, 0, spoil)
    read = stagescope.read(drawn)
    (row,) = read.diagnostics.filter(pl.col("severity") == "error").to_dicts()
    assert (row["code"], row["count"]) == ("actions.dropped", 3)
    assert read.spans.filter(pl.col("rank") == 0).height == 1


def test_an_action_that_ends_before_it_starts_is_dropped_and_counted(drawn):
    def turn(content):
        content["1"]["fwd_end"][0] = -5.0

    change(drawn, 0, turn)
    assert ["end before they start" in text for text in messages(stagescope.read(drawn), "error")] == [True]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda text: text.replace(b'"memory"', b'"mem\xffry"'), "text.invalid"),
        (lambda text: text + b"}", "file.damaged"),
        (lambda text: text.replace(b'"memory"', b'"memory'), "file.damaged"),
    ],
)
def test_a_dump_that_is_not_valid_json_is_read_as_far_as_it_is(drawn, damage, code):
    intact = stagescope.read(drawn)
    path = drawn / "pp_rank_1.json"
    path.write_bytes(damage(path.read_bytes()))
    timeline = stagescope.read(drawn)
    assert code in timeline.diagnostics["code"].to_list() or "file.unreadable" in timeline.diagnostics["code"]
    assert set(actions(timeline)) <= set(actions(intact))


def test_absurd_sizes_in_the_configuration_cost_neither_time_nor_memory(drawn):
    def leave_out_numbers(content):
        for series in ("fwd", "bwd"):
            content["1"] |= {f"{series}_minibatch": [], f"{series}_chunk": []}

    change(drawn, 0, leave_out_numbers)
    config = json.loads((drawn / "config.json").read_text()) | {"vp_size": 2**31 - 1, "num_mbs": 2**31 - 1}
    (drawn / "config.json").write_text(json.dumps(config))
    assert stagescope.read(drawn).spans.height == 8


def test_a_truncated_dump_yields_its_complete_iterations(tmp_path):
    folder = write_dumps(tmp_path / "d", timeline_from_text(DRAWING, cell_ns=MS), iterations=3)
    path = folder / "pp_rank_1.json"
    text = path.read_text()
    path.write_text(text[: text.index('"3"') + 60])
    read = stagescope.read(folder)
    assert read.spans.filter(pl.col("rank") == 1)["step"].unique().to_list() == [1, 2]
    assert sorted(text.partition(":")[0] for text in messages(read, "error")) == [
        "iterations that other ranks have are missing",
        "the dump is truncated; the iterations before the cut were read",
    ]
    path.write_text(text[:150])
    read = stagescope.read(folder)
    assert 1 not in read.spans["rank"]
    assert sorted(read.diagnostics.filter(pl.col("severity") == "error")["code"]) == [
        "file.unreadable",
        "ranks.missing",
    ]
    with pytest.raises(InputError, match="it has no complete iteration"):
        stagescope.read(path)


def test_fewer_forwards_than_declared_are_a_warning(drawn):
    config = json.loads((drawn / "config.json").read_text()) | {"num_mbs": 3}
    (drawn / "config.json").write_text(json.dumps(config))
    assert any("fewer forwards than the 3" in text for text in messages(stagescope.read(drawn), "warning"))


def test_dumps_of_two_directories_are_rejected(tmp_path):
    folders = [write_dumps(tmp_path / name, timeline_from_text(DRAWING, cell_ns=MS)) for name in "ab"]
    with pytest.raises(InputError, match="belongs to another run"):
        stagescope.read(folders[0] / "pp_rank_0.json", folders[1] / "pp_rank_1.json")


@pytest.mark.parametrize(
    "content",
    [
        b'{"model_type": "llama", "pp_size": 4}',
        b"[]",
        b"",
        b'{"traceEvents": [], "fwd_start": 1, "total": 2}',
    ],
)
def test_other_files_are_not_recognized(tmp_path, content):
    assert not READER.recognizes(tmp_path / "config.json", content)
