"""Tests of stagescope simulate."""

import json
import re

import polars as pl
import pytest

import stagescope
from consumers import query_trace
from golden_orders import order_text
from stagescope.cli import main
from stagescope.schedules import NAMES, order

DUALPIPEV = ["simulate", "dualpipev", "--ranks", "4", "--microbatches", "10"]


def test_prints_chart_and_summary(capsys):
    assert main(["simulate", "1f1b", "--ranks", "2", "--microbatches", "3", "--width", "41"]) == 0
    assert (
        capsys.readouterr().out
        == """\
1f1b · 2 ranks · 3 micro-batches · bubbl…
   0 F0─F1─      B0────F2─B1────   B2────
   1    F0─B0────F1─B1────F2─B2────
rank └──────────────┴──────────────┴─────
     0              5             10
F forward  B backward

makespan         12
lower bound      12 (from rank 1); the makespan is 0.0 % above it
bubble           25.0 % of ranks x makespan
own-span bubble  25.0 % of the longest rank's first start to last end
peak memory      2 chunk activations on one rank

rank  busy  idle  peak chunks
   0     9     3            2
   1     9     3            1
"""
    )


def test_costs_with_units_are_times(capsys):
    call = [
        "simulate",
        "1f1b",
        "--ranks",
        "2",
        "--microbatches",
        "3",
        "--cost",
        "F=2.5ms,B=5ms",
        "--hop",
        "300us",
    ]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "makespan         31.20 ms" in out
    assert "0 ms" in out


@pytest.mark.parametrize("suffix", ["svg", "pftrace", "json", "csv", "parquet"])
def test_writes_every_format_by_suffix(suffix, tmp_path, capsys):
    out = tmp_path / f"step.{suffix}"
    assert main([*DUALPIPEV, "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {out}: ")
    assert out.stat().st_size > 0


def test_reads_a_written_simulation(tmp_path):
    out = tmp_path / "step.parquet"
    assert main([*DUALPIPEV, "-o", str(out)]) == 0
    action_count = sum(
        len(action.parts)
        for actions in order("dualpipev", ranks=4, microbatches=10).values()
        for action in actions
    )
    assert stagescope.read(out).spans.height == action_count
    assert main(["show", str(out)]) == 0


def test_replaces_an_existing_file_only_with_force(tmp_path, capsys):
    out = tmp_path / "step.svg"
    out.write_text("mine")
    assert main([*DUALPIPEV, "-o", str(out)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main([*DUALPIPEV, "-o", str(out), "--force"]) == 0


def test_picture_labels_overlapped_pairs_and_has_no_unit(tmp_path):
    out = tmp_path / "step.svg"
    assert main([*DUALPIPEV, "-o", str(out)]) == 0
    svg = out.read_text(encoding="utf-8")
    labels = re.findall(r"<text[^>]*>(\d+F)<tspan[^>]*>(\+\d+B)</tspan></text>", svg)
    pairs = sum(
        str(action).count("+")
        for actions in order("dualpipev", ranks=4, microbatches=10).values()
        for action in actions
    )
    assert len(labels) == pairs
    assert ("7F", "+3B") in labels
    assert "time in units of cost" in svg


def test_passes_options_to_the_schedule(capsys):
    call = ["simulate", "interleaved", "--ranks", "4", "--microbatches", "8", "--chunks", "2"]
    assert main([*call, "--option", "group_size=8", "--no-color"]) == 0
    peak = r"peak memory +(\d+) chunk"
    wide = int(re.search(peak, capsys.readouterr().out)[1])
    assert main([*call, "--option", "group_size=4"]) == 0
    assert wide > int(re.search(peak, capsys.readouterr().out)[1])


def test_lists_every_schedule_with_its_constraints(capsys):
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line and line[0] != " "] == list(NAMES)
    assert "needs at least 2 x ranks micro-batches" in out


def test_compares_schedules(capsys):
    assert (
        main(["simulate", "--compare", "1f1b,zb-h1,dualpipev", "--ranks", "4", "--microbatches", "16"]) == 0
    )
    out, err = capsys.readouterr()
    assert out.splitlines()[:4] == [
        "schedule   makespan  bubble  own span  above bound  memory  parameters",
        "zb-h1            51   5.9 %     5.9 %        0.0 %       4           1",
        "dualpipev        51   5.9 %     5.9 %        3.0 %     4.5           1",
        "1f1b             57  15.8 %    15.8 %        0.0 %       4           1",
    ]
    assert out.endswith("\nzb-h1 would save 10.5 % against 1f1b, at the same memory\n")
    assert err == ""


def test_compares_all_schedules_within_a_memory_limit(capsys):
    call = ["simulate", "--compare", "all", "--ranks", "4", "--microbatches", "7", "--memory-limit", "4"]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "\nnot possible:\n  gpipe: peak memory is 7; the limit is 4\n" in out
    assert "nearest valid: microbatches=8" in out


def test_exits_with_1_if_no_schedule_is_possible(capsys):
    assert main(["simulate", "--compare", "dualpipev", "--ranks", "4", "--microbatches", "7"]) == 1
    assert "not possible" in capsys.readouterr().out


def test_simulates_an_order_from_the_csv_of_torch(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0SEND_F0,0F1,0B0,0B1\n1RECV_F0,1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")
    assert main(["simulate", "--order", str(path), "--cost", "F=1,B=2,FB=2.5"]) == 0
    out, err = capsys.readouterr()
    assert "\nmakespan         8.5\n" in out
    assert (
        err
        == f"skipped cells in {path} (the simulation schedules communication itself): 1 SEND_F, 1 RECV_F\n"
    )


def test_an_order_file_gives_the_same_step_as_its_schedule(tmp_path, capsys):
    path = tmp_path / "dualpipev.txt"
    path.write_text(order_text(order("dualpipev", ranks=4, microbatches=10)))
    assert main(DUALPIPEV) == 0
    built = capsys.readouterr().out
    assert main(["simulate", "--order", str(path)]) == 0
    assert capsys.readouterr().out == built


def test_reports_the_cycle_of_a_deadlock(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1\n")
    assert main(["simulate", "--order", str(path)]) == 1
    assert capsys.readouterr().err == (
        "stagescope: the order deadlocks: B0.0 on rank 0 waits for B1.0 on rank 1 waits for F1.1 on rank 1 "
        "waits for F0.1 on rank 0 waits for B0.0 on rank 0\n"
    )


def test_reports_the_missing_action_of_an_incomplete_order(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text("F0.0 F0.1 B0.0\n")
    assert main(["simulate", "--order", str(path)]) == 1
    assert capsys.readouterr().err == "stagescope: invalid order: rank 0, B0.1: is missing\n"


def test_reports_constraint_and_nearest_valid_sizes(capsys):
    assert main(["simulate", "dualpipev", "--ranks", "4", "--microbatches", "7"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("stagescope: dualpipev needs at least 2 x ranks micro-batches (")
    assert err.endswith("nearest valid: microbatches=8\n")


SIZES = ["--ranks", "4", "--microbatches", "8"]
WRONG = {
    "simulate": "expected one of SCHEDULE, --order FILE, --compare NAMES, --list; found nothing",
    "simulate 1f1b --list": "found --list and SCHEDULE",
    "simulate 1f1b --ranks 4": "missing --ranks and --microbatches",
    "simulate 1f1b --cost F": "cost 'F': expected F, B, I, W, FB, O or hop",
    "simulate 1f1b --cost F=-1": "cost 'forward=-1'",
    "simulate 1f1b --cost F=1,F=2": "cost forward is given twice",
    "simulate 1f1b --cost F=1,B=2ms": "mix plain numbers",
    "simulate 1f1b --cost B=2ms": "costs with units require the cost of a forward",
    "simulate 1f1b --option lag": "--option 'lag': expected NAME=VALUE",
    "simulate 1f1b --memory-limit 3": "--memory-limit: only with --compare",
    "simulate --compare 1f1b -o x.svg": "-o and --option: only with one SCHEDULE",
    "simulate --order x.csv --ranks 4": "only with SCHEDULE",
}


@pytest.mark.parametrize("call", WRONG)
def test_usage_errors_exit_with_2(call, capsys):
    own = call.split()
    whole = own if len(own) == 1 or "--ranks" in own else [*own, *SIZES]
    assert main(whole) == 2
    assert WRONG[call] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("simulate two-f-one-b", "unknown schedule 'two-f-one-b'"),
        ("simulate zb-h1 --option lag=1", "zb-h1 has no option lag"),
        ("simulate 1f1b --cost F=1:2", "2 values for 4 stages"),
        ("simulate --compare 1f1b,nothing", "unknown schedule 'nothing'"),
    ],
)
def test_input_errors_exit_with_1(call, message, capsys):
    assert main([*call.split(), *SIZES]) == 1
    assert message in capsys.readouterr().err


ACTIONS = (
    "select count(*) from slice where name glob 'forward [0-9]*' or name glob 'backward [0-9]*' "
    "or name glob 'dgrad [0-9]*' or name glob 'wgrad [0-9]*'"
)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pftrace", "json"])
def test_trace_processor_loads_a_simulation(suffix, tmp_path):
    out, table = tmp_path / f"step.{suffix}", tmp_path / "step.csv"
    for path in (out, table):
        assert main([*DUALPIPEV, "--hop", "0.2", "--cost", "F=1,B=2,O=1", "-o", str(path)]) == 0
    length, actions = query_trace(out, "select max(ts + dur) - min(ts) from slice where dur > 0", ACTIONS)
    spans = pl.read_csv(table)
    assert int(length[0][0]) == spans["end_ns"].max() - spans["start_ns"].min()
    computed = spans.filter(pl.col("microbatch").is_not_null() & (pl.col("lane") == "compute"))
    assert int(actions[0][0]) == computed.height
    if suffix == "json":
        assert json.loads(out.read_text())["traceEvents"]
