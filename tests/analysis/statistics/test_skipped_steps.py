"""Of very many steps, ranks and links are compared in some, and long steps are explained in all."""

import numpy as np
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics import action_samples
from stagescope.analysis.statistics.action_samples import sample_actions
from stagescope.analysis.statistics.step_trend import find_step_trends
from stagescope.analysis.statistics.stragglers import find_stragglers
from stagescope.vocabulary.codes import CODES

STEPS = 60
SHAPE = Shape(pipelines=2, steps=STEPS)


@pytest.fixture(params=[2, 3])
def stride(request, monkeypatch):
    """Return n, if every n-th step is compared."""
    rows = sample_actions(run(random_times(SHAPE)).spans).table.height
    monkeypatch.setattr(action_samples, "MOST_SAMPLES", -(-rows // request.param))
    return request.param


def test_some_steps_are_samples_evenly_and_a_diagnostic_states_how_many(stride):
    samples = sample_actions(run(random_times(SHAPE)).spans)
    assert samples.sampling.steps == tuple(range(0, STEPS, stride))
    assert samples.sampling.count == STEPS // stride
    assert samples.table["sample"].unique().sort().to_list() == list(range(STEPS // stride))
    (note,) = samples.diagnostics
    assert note.message == (
        f"ranks, stages and links were compared in {STEPS // stride} of {STEPS} steps, evenly over the run"
    )
    assert note.code == "samples.skipped"
    assert note.code in {code.name for code in CODES}


def test_all_steps_are_samples_if_they_fit(monkeypatch):
    spans = run(random_times(SHAPE)).spans
    every = sample_actions(spans)
    assert not every.sampling.skipped
    monkeypatch.setattr(action_samples, "MOST_SAMPLES", every.table.height)
    assert sample_actions(spans).sampling == every.sampling


@pytest.mark.usefixtures("stride")
def test_slow_ranks_and_links_are_named_with_their_size():
    times = random_times(SHAPE)
    times.action_ns[:, 1, :, 2] *= 1.06
    times.message_ns[:, 0, :, 1] *= 2
    claims = find_stragglers(run(times)).table.filter("is_claimed")
    (rank,) = claims.filter(subject="rank", finding="slow").to_dicts()
    assert rank["rank"] == 6
    assert rank["excess_fraction"] == pytest.approx(0.06, abs=0.01)
    assert rank["extra_ns_per_step"] == pytest.approx(0.06 * 8 * 30e6, rel=0.15)
    assert claims.filter(subject="link").height > 0


def test_slow_steps_are_ranges_of_those_that_were_compared(stride):
    times = random_times(SHAPE)
    times.action_ns[:, 1, 24:43, 2] *= 1.2
    (row,) = find_stragglers(run(times)).changing.to_dicts()
    assert (row["rank"], row["slow_steps"]) == (6, "24-42")
    assert (row["slow_count"], row["steps"]) == (18 // stride + 1, STEPS // stride)


@pytest.mark.usefixtures("stride")
def test_long_steps_that_were_not_compared_are_explained():
    times = random_times(SHAPE)
    times.action_ns[1, 1, 7, 2, 3] += 60e6
    times.message_ns[0, 0, 11, 2, 4] += 55e6
    outliers = find_step_trends(run(times)).outliers
    found = outliers.select("pipeline", "step", "location", "rank", "kind", "peer").rows()
    assert found == [(0, 11, "link", 1, "forward", 2), (4, 7, "compute", 6, "backward", None)]


@pytest.mark.usefixtures("stride")
def test_early_sends_of_skipped_steps_are_not_counted():
    skipped = find_stragglers(run(random_times(SHAPE))).diagnostics
    early = {note.code: note.count for note in skipped}["links.early_send"]
    spans = run(random_times(SHAPE)).spans
    sampled = np.isin(spans["step"].to_numpy(), sample_actions(spans).sampling.steps)
    alone = find_stragglers(run(random_times(SHAPE)).with_spans(spans.filter(sampled))).diagnostics
    assert early == {note.code: note.count for note in alone}["links.early_send"]
