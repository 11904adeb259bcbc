"""Hidden and exposed communication: DeepSeek's pair against a count per microsecond, and planted kernels."""

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest

import stagescope
from stagescope.analysis.kernels.communication import (
    KERNEL_COMMUNICATION,
    KERNEL_COMMUNICATION_KINDS,
    measure_kernel_communication,
    summarize_kernel_communication,
)
from stagescope.analysis.kernels.sentences import communication_sentences
from stagescope.model import KERNELS
from stagescope.model.validate import conform

DEEPSEEK = Path(__file__).parents[2] / "data/kernels/deepseek_train.json.gz"
MEASURED = ("kernels", "communication_ns", "hidden_ns", "exposed_ns")


def kernels(*rows):
    names = ("category", "operation", "start_ns", "end_ns", "kind", "pair")
    frame = pl.DataFrame(rows, dict.fromkeys(names, pl.Object), orient="row", strict=False)
    known = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    assert frame.height == len(rows)
    return conform(
        pl.DataFrame({"rank": [0] * len(rows), "name": ["k"] * len(rows), **known}, strict=False), KERNELS
    )


def counted_per_microsecond(where):
    """Return how long DeepEP's kernels ran, and during how much of it another kernel did, from the JSON alone."""
    events = json.loads(gzip.decompress(DEEPSEEK.read_bytes()))["traceEvents"]
    kernels = [each for each in events if each["cat"] == "kernel"]
    sent = [each for each in kernels if re.search(r"ep::internode::", each["name"])]
    busy = {
        moment
        for each in kernels
        if each not in sent
        for moment in range(each["ts"], each["ts"] + each["dur"])
    }
    chosen = [each for each in sent if where in each["name"]]
    moments = [moment for each in chosen for moment in range(each["ts"], each["ts"] + each["dur"])]
    return len(moments), sum(moment in busy for moment in moments)


def test_deepseeks_pair_hides_as_much_as_a_count_per_microsecond_finds():
    report = stagescope.analyze(stagescope.read(DEEPSEEK))
    of_pair = report.kernel_communication.filter(scope="pair", operation="all_to_all").row(0, named=True)
    whole_us, hidden_us = counted_per_microsecond("")
    assert (of_pair["kernels"], whole_us, hidden_us) == (32, 113_030, 108_868)
    assert of_pair["communication_ns"] == whole_us * 1000
    assert of_pair["hidden_ns"] == hidden_us * 1000
    assert of_pair["hidden_fraction"] == pytest.approx(hidden_us / whole_us)
    assert report.verdict.findings == (
        "96.3 % of the all-to-all communication is hidden behind compute: 108.9 ms of 113.0 ms in 32 kernels.",
    )


def test_forward_and_backward_of_a_pair_add_up_to_it():
    rows = stagescope.analyze(stagescope.read(DEEPSEEK)).kernel_communication.filter(operation="any")
    of_pair = rows.filter(scope="pair").select(MEASURED)
    of_actions = rows.filter(scope="action")
    assert of_actions["kind"].to_list() == ["forward", "backward_input"]
    assert of_actions.select(pl.sum(*MEASURED)).equals(of_pair)


def test_overlapping_kernels_of_one_operation_count_once():
    rows = measure_kernel_communication(
        kernels(
            ("communication", "all_gather", 0, 100, "forward", None),
            ("communication", "all_gather", 50, 150, "forward", None),
            ("communication", "reduce_scatter", 100, 200, "forward", None),
            ("gemm", None, 20, 60, "forward", None),
            ("memcpy", None, 0, 200, "forward", None),
            ("other", None, 140, 160, "backward", None),
        )
    )
    assert rows.select("scope", "operation", *MEASURED).rows() == [
        ("action", "all_gather", 2, 150, 50, 100),
        ("action", "any", 3, 200, 60, 140),
        ("action", "reduce_scatter", 1, 100, 20, 80),
    ]


def test_compute_of_another_rank_hides_nothing():
    of_two = kernels(
        ("communication", "all_reduce", 0, 100, None, None), ("gemm", None, 0, 100, None, None)
    ).with_columns(rank=pl.Series([0, 1], dtype=pl.Int32))
    rows = measure_kernel_communication(of_two).filter(operation="all_reduce")
    assert rows.select("rank", "scope", "hidden_ns", "exposed_ns").rows() == [(0, "outside", 0, 100)]


def test_communication_of_an_unknown_operation_stays_unknown():
    rows = measure_kernel_communication(kernels(("communication", None, 0, 100, None, None)))
    assert rows.select("operation", "communication_ns").rows() == [("any", 100), (None, 100)]
    assert communication_sentences(summarize_kernel_communication(KERNELS.empty(), rows)) == ()


def test_kernels_without_length_have_no_fraction():
    rows = measure_kernel_communication(kernels(("communication", "all_reduce", 5, 5, None, None)))
    assert rows["hidden_fraction"].to_list() == [None, None]
    assert rows["communication_ns"].to_list() == [0, 0]


def test_without_kernels_the_tables_are_empty_and_declared():
    rows = measure_kernel_communication(KERNELS.empty())
    assert rows.schema == dict(KERNEL_COMMUNICATION.schema)
    kinds = summarize_kernel_communication(KERNELS.empty(), rows)
    assert kinds.schema == dict(KERNEL_COMMUNICATION_KINDS.schema)
    assert rows.is_empty()
    assert kinds.is_empty()
