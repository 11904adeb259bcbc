import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from drawing import timeline_from_text
from running_server import run_of
from stagescope.viewer import links as links_module
from stagescope.viewer.tiles import levels as levels_module
from stagescope.viewer.tiles.levels import Part, TooManyError
from stagescope.viewer.tiles.links import find_links, span_dicts
from stagescope.vocabulary.kinds import BY_CODE, label
from synthetic import Shape, pipeline_timeline

DRAWN = """
F0 F1 .  .  .  .  B0 B1
.  F0 F1 .  .  B0 B1 .
.  .  F0 F1 B0 B1 .  .
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    steps = [timeline_from_text(DRAWN, step=step, origin_ns=step * 10_000) for step in (0, 1)]
    both = steps[0].with_spans(pl.concat([each.spans for each in steps]).sort("rank", "start_ns"))
    return run_of(both, tmp_path_factory.mktemp("links") / "run")


def named(span):
    return label(BY_CODE[span["kind"]].name, span["stage"], span["microbatch"])


def id_of(run, name, step=0):
    """Return the id of an action by its name in the papers."""
    spans = span_dicts(run.levels, np.arange(run.levels.shape.span_count))
    return next(number for number, span in enumerate(spans) if named(span) == name and span["step"] == step)


def linked(run, name, *, whole, step=0):
    found = find_links(run.levels, run.meta, id_of(run, name, step), whole=whole)
    assert {span["step"] for span in found["spans"]} == {step}
    names = {span["id"]: named(span) for span in found["spans"]}
    return {(names[giver], names[taker]) for giver, taker in found["links"]}


def test_direct_links_are_the_inputs_and_consumers_of_an_action(run):
    assert linked(run, "F1.0", whole=False) == {("F0.0", "F1.0"), ("F1.0", "F2.0")}
    assert linked(run, "F2.1", whole=False) == {("F1.1", "F2.1"), ("F2.1", "B2.1")}
    assert linked(run, "B0.1", whole=False) == {("B1.1", "B0.1")}


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("name", ["F0.1", "F2.1", "B1.1", "B0.1"])
def test_whole_chain_is_that_of_the_microbatch_in_its_step(run, name, step):
    way = ["F0.1", "F1.1", "F2.1", "B2.1", "B1.1", "B0.1"]
    assert linked(run, name, whole=True, step=step) == set(itertools.pairwise(way))


def test_a_weight_half_needs_its_input_half_and_a_chunk_the_one_before_it(tmp_path):
    split = run_of(
        timeline_from_text("F0.0 F2.0 . . I2.0 W2.0 . I0.0 W0.0\n. . F1.0 . . . I1.0 W1.0"), tmp_path / "run"
    )
    assert linked(split, "W2.0", whole=False) == {("I2.0", "W2.0")}
    assert linked(split, "I2.0", whole=False) == {("F2.0", "I2.0"), ("I2.0", "I1.0"), ("I2.0", "W2.0")}


def test_span_that_is_not_an_action_has_no_links(tmp_path):
    run = run_of(timeline_from_text("F0 B0 O0"), tmp_path / "run")
    found = find_links(run.levels, run.meta, 2, whole=True)
    assert (found["links"], [span["id"] for span in found["spans"]]) == ([], [2])


def test_of_replicas_the_own_pipeline_counts(tmp_path):
    drawn = timeline_from_text("F0.0 B0.0\nF1.0 B1.0\nF0.0 B0.0\nF1.0 B1.0")
    ranks = drawn.ranks.with_columns(
        pp=pl.Series([0, 1, 0, 1], dtype=pl.Int32), dp=pl.Series([0, 0, 1, 1], dtype=pl.Int32)
    )
    run = run_of(replace(drawn, ranks=ranks), tmp_path / "run")
    found = find_links(run.levels, run.meta, 0, whole=True)
    assert {span["row"] for span in found["spans"]} == {0, 1}


def test_large_run_is_searched_by_step(tmp_path, monkeypatch):
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=40, steps=12))
    run = run_of(timeline, tmp_path / "run")
    number = id_of(run, "F0.3", 5)
    wanted = find_links(run.levels, run.meta, number, whole=True)
    monkeypatch.setattr(levels_module, "MOST_RECORDS", timeline.spans.height // 2)
    with pytest.raises(TooManyError):
        run.levels.spans_in(Part(0, run.levels.shape.end + 1, np.arange(2)))
    assert find_links(run.levels, run.meta, number, whole=True) == wanted
    assert len(wanted["links"]) == 3


def test_too_large_step_is_refused(run, monkeypatch):
    number = id_of(run, "F1.1")
    monkeypatch.setattr(levels_module, "MOST_RECORDS", 5)
    with pytest.raises(TooManyError):
        find_links(run.levels, run.meta, number, whole=True)


def test_links_are_refused_where_the_layout_does_not_distinguish_ranks(tmp_path, monkeypatch):
    # One rank of the second stage is missing, so that replicas cannot be inferred.
    replicas = timeline_from_text("\n".join(["F0.0 . . B0.0"] * 5 + [". F1.0 B1.0 ."] * 4))
    run = run_of(replicas, tmp_path / "run")
    assert len(find_links(run.levels, run.meta, 0, whole=True)["links"]) > 4 * 3
    monkeypatch.setattr(links_module, "MOST_SURPLUS_PAIRS", 4)
    with pytest.raises(TooManyError):
        find_links(run.levels, run.meta, 0, whole=False)
