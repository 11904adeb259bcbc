"""What a report shows of counters: planted memory, sizes of micro-batches, and slow clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from stagescope import api
from stagescope.analysis.counters.data_sizes import measure_step_data
from stagescope.analysis.counters.lengths import lengths_sentence_part
from stagescope.analysis.counters.parts import SampledCells, show_counters
from stagescope.model import COUNTERS, RANKS, SPANS, STEPS, Timeline, empty_timeline
from stagescope.model.pipelines import find_pipelines
from stagescope.model.validate import conform
from stagescope.reports.counter_text import compared_throughput, memory_sentence, throughput_sentence
from stagescope.reports.markdown import report_markdown
from stagescope.reports.tables import step_and_rank_tables
from stagescope.reports.text import report_text

GIB = 2**30
STEPS_RUN, MICROBATCHES = 6, 4
FORWARD_NS, PERIOD_NS = 1_000_000, 20_000_000


def sizes(seed=3):
    """Return the planted tokens of every (step, micro-batch)."""
    random = np.random.default_rng(seed)
    return random.integers(512, 4096, (STEPS_RUN, MICROBATCHES))


def planted(tokens, *, follows=True, slow_rank=None, replicas=1, seed=5):
    """Return a run of GPipe with two ranks per replica, in which actions take time in proportion to the tokens."""
    noise = np.random.default_rng(seed)
    rows, steps = [], []
    for rank in range(2 * replicas):
        stage = rank % 2
        for step in range(STEPS_RUN):
            begin_ns = at_ns = step * PERIOD_NS
            for kind, factor in (("forward", 1), ("backward", 2)):
                for number in range(MICROBATCHES):
                    share = (
                        tokens[step, number] / 2048 if follows else noise.uniform(0.4, 1.6) ** (stage == 9)
                    )
                    duration_ns = FORWARD_NS * factor * share * noise.normal(1, 0.002)
                    duration_ns *= 1.4 if rank == slow_rank else 1
                    rows.append(
                        {"rank": rank, "lane": "compute", "kind": kind, "step": step, "stage": stage, "chunk": 0,
                         "microbatch": number, "start_ns": int(at_ns), "end_ns": int(at_ns + duration_ns)}
                    )  # fmt: skip
                    at_ns += duration_ns
            steps.append({"step": step, "rank": rank, "start_ns": begin_ns, "end_ns": int(at_ns)})
    ranks = [
        {"rank": rank, "pp": rank % 2, "dp": rank // 2, "tp": 0, "cp": 0, "device": "cuda:0"}
        for rank in range(2 * replicas)
    ]
    return replace(
        empty_timeline(),
        spans=conform(pl.DataFrame(rows), SPANS),
        ranks=conform(pl.DataFrame(ranks), RANKS),
        steps=conform(pl.DataFrame(steps), STEPS),
    )


def with_counters(timeline: Timeline, rows) -> Timeline:
    known = [{"time_ns": 5, **row} for row in rows]
    return replace(timeline, counters=conform(pl.DataFrame(known, infer_schema_length=None), COUNTERS))


def token_rows(tokens, *ranks, name="tokens"):
    return [
        {"rank": rank, "name": name, "step": step, "microbatch": number, "value": float(tokens[step, number])}
        for rank in ranks
        for step in range(STEPS_RUN)
        for number in range(MICROBATCHES)
    ]


@pytest.fixture(scope="module")
def tokens():
    return sizes()


def test_throughput_is_the_planted_tokens_over_the_iterations(tokens):
    timeline = with_counters(planted(tokens), token_rows(tokens, 0, 1))  # both ends count the same data
    report = api.analyze(timeline, explain=False)
    counted = list(report.bubble.steps)
    assert report.data["count"].to_list() == tokens.sum(axis=1).tolist()
    assert set(report.data["unit"]) == {"tokens"}
    assert set(report.data["scope"]) == {"run"}
    assert report.data["iteration_ns"].to_list() == [PERIOD_NS] * (STEPS_RUN - 1) + [None]
    whole = [step for step in counted if step < STEPS_RUN - 1]
    expected = tokens[whole].sum() / (len(whole) * PERIOD_NS / 1e9)
    assert report.throughput == pytest.approx(expected, rel=1e-9)
    assert f"{expected:,.0f} tokens/s" in throughput_sentence(report)


def test_replicas_are_added_and_ranks_of_one_replica_are_not(tokens):
    twice = planted(tokens, replicas=2)
    both = with_counters(twice, token_rows(tokens, 0, 1, 2))
    assert api.analyze(both, explain=False).data["count"].to_list() == (2 * tokens.sum(axis=1)).tolist()
    # Without data of one replica, or without coordinates, the sum is unknown.
    partly = with_counters(twice, token_rows(tokens, 0))
    pipelines = find_pipelines(both.spans, both.ranks)
    nowhere = both.ranks.with_columns(dp=pl.lit(None, pl.Int32))
    iterations = api.analyze(both, explain=False).intermediates.iteration_steps
    for timeline, ranks in ((partly, partly.ranks), (both, nowhere)):
        data = measure_step_data(timeline.counters, pipelines, ranks, iterations)
        assert set(data["scope"]) == {"pipeline"}
        assert data["count"].to_list() == tokens.sum(axis=1).tolist()
    assert "per pipeline" in throughput_sentence(api.analyze(partly, explain=False))


def test_counts_of_whole_steps_replace_those_of_micro_batches(tokens):
    whole = [{"rank": 1, "name": "tokens", "step": 2, "value": value} for value in (100.0, 23.0)]
    report = api.analyze(with_counters(planted(tokens), [*token_rows(tokens, 0), *whole]), explain=False)
    expected = tokens.sum(axis=1).tolist()
    expected[2] = 123
    assert report.data["count"].to_list() == expected


def test_data_imbalance_names_the_tokens_only_where_durations_follow_them(tokens):
    followed = api.analyze(with_counters(planted(tokens), token_rows(tokens, 0)))
    note = followed.explanation.lengths_note
    assert note.startswith("with their numbers of tokens (correlation 1.00, n = ")
    assert note in str(followed.verdict) + report_text(followed, width=400)

    def note_of(rows):
        counters = with_counters(empty_timeline(), rows).counters
        known = followed.intermediates
        lengths = known.ledger.classes.length_of_action
        sample = SampledCells(None, known.windows.pipelines)
        shown = show_counters(counters, range(STEPS_RUN), sample)
        return lengths_sentence_part(known.actions, lengths, shown.sizes, shown.units, range(STEPS_RUN))

    assert (note_of(token_rows(sizes(seed=9), 0)) or "but not").startswith("but not")
    equal = np.full_like(tokens, 2048)
    assert note_of(token_rows(equal, 0)) == "although their numbers of tokens are equal"
    packed = [*token_rows(equal, 0), *token_rows(tokens, 0, name="longest sequence")]
    assert note_of(packed).startswith("with their longest sequences")
    assert note_of([{"rank": 0, "name": "resident memory", "value": 1.0}]) is None


def test_report_names_the_rank_with_most_memory_and_prints_nothing_unknown(tokens):
    rows = [
        {"rank": 0, "name": "peak allocated memory", "value": 3.5 * GIB, "device": "cuda:0"},
        {"rank": 0, "name": "peak allocated memory", "value": 1.0 * GIB, "device": "cuda:0"},  # after a reset
        {"rank": 0, "name": "reserved memory", "value": 4.0 * GIB, "device": "cuda:0"},
        {"rank": 1, "name": "allocated memory", "value": 2.0 * GIB, "device": "cuda:0"},
        {"rank": 0, "name": "peak resident memory", "value": 1.5 * GIB},
    ]
    report = api.analyze(with_counters(planted(tokens), rows))
    assert report.memory.rows() == [
        (0, "cuda:0", int(3.5 * GIB), 4 * GIB, int(1.5 * GIB)),
        (1, "cuda:0", 2 * GIB, None, None),
    ]
    assert memory_sentence(report) == (
        "Device memory: rank 0 had at most 3.5 GiB allocated and 4 GiB reserved, rank 1 the least with 2 GiB allocated."
    )
    assert "3.5 GiB" in report_markdown(report)
    table = step_and_rank_tables(report, width=200)
    assert "device memory" in table
    assert "1.5 GiB" in table
    assert api.report_json(report)["memory"][1]["resident_bytes"] is None
    bare = api.analyze(planted(tokens))
    assert memory_sentence(bare) == throughput_sentence(bare) == ""
    assert "memory" not in step_and_rank_tables(bare, width=200)
    assert api.report_json(bare)["data"] == {"per_second": None, "steps": []}


def clock_rows(slow_rank, ranks=4):
    for rank in range(ranks):
        for step in range(STEPS_RUN):
            is_slow = rank == slow_rank
            for name, value in (
                ("GPU clock", 1410.0 if is_slow else 1980.0),
                ("GPU temperature", 88.0 if is_slow else 61.0),
                ("GPU slowdown reasons", 0x24 if is_slow and step else 0x4),
                ("CPU thermal throttles", 7.0 * (rank == 1) * (step == 5)),
                ("CPU quota wait", 9e6 * step * (rank == 3)),
            ):
                yield {"rank": rank, "name": name, "value": value, "step": step, "time_ns": step * PERIOD_NS}


def test_slow_clock_is_stated_beside_the_straggler_and_nowhere_else(tokens):
    timeline = with_counters(planted(tokens, slow_rank=2, replicas=2), clock_rows(2))
    report = api.analyze(timeline)
    assert report.explanation.clock_notes[2] == (
        "GPU clock of 1,410 MHz on average at up to 88 °C, 1,980 MHz on the other ranks (n = 6 readings); "
        "thermal slowdown by the driver in 5 of 6 readings"
    )
    assert report.explanation.clock_notes[1] == "7 thermal throttles of the CPU"
    assert report.explanation.clock_notes[3] == "CPU quota used up for 45.00 ms within 100.0 ms"
    [evidence] = report.findings.filter(subject="rank 2")["evidence"]
    assert evidence.endswith(f"Counters of rank 2 in these steps: {report.explanation.clock_notes[2]}.")
    elsewhere = api.analyze(with_counters(planted(tokens, replicas=2), clock_rows(2)))
    assert not any("GPU clock" in text for text in elsewhere.findings["evidence"])


def test_comparison_has_the_throughput_of_both_runs(tokens):
    counted = with_counters(planted(tokens), token_rows(tokens, 0))
    more = with_counters(planted(tokens), token_rows(2 * tokens, 0))
    comparison = api.compare(counted, more)
    before, after = comparison.throughput
    assert after[2] == pytest.approx(2 * before[2])
    assert "(+100.0 %)" in compared_throughput(comparison)
    assert api.comparison_json(comparison)["throughput"]["after"] == {
        "unit": "tokens", "scope": "run", "per_second": after[2],
    }  # fmt: skip
    unknown = api.compare(counted, planted(tokens))
    assert unknown.throughput[1] is None
    assert compared_throughput(unknown) == ""
