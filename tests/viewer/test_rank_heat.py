"""The map of ranks by steps: exact to three digits, and left out where it would be too large."""

import polars as pl

from column_blobs import read_blob
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from stagescope.viewer import rank_heat
from stagescope.viewer.rank_heat import rank_heat_section
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=4, microbatches=3, steps=2))
BUBBLES = step_bubbles(RUN.spans, find_pipelines(RUN.spans, RUN.ranks))


def test_it_has_every_rank_in_every_step():
    columns, _ = read_blob(rank_heat_section(BUBBLES, [3, 2, 1, 0]))
    found = pl.DataFrame(columns)
    assert found.select("row", "step").rows() == [(row, step) for row in range(4) for step in range(2)]
    measured = BUBBLES.sort("rank", "step", descending=[True, False])
    for name in ("window_ns", "idle_ns"):
        assert found[name].to_list() == measured[name].to_list()
    assert found["wait_ns"].to_list() == (measured["receive_wait_ns"] + measured["send_wait_ns"]).to_list()


def test_nothing_is_made_of_nothing(monkeypatch):
    assert rank_heat_section(BUBBLES.clear(), [0, 1, 2, 3]) is None
    monkeypatch.setattr(rank_heat, "MOST_CELLS", 7)
    assert rank_heat_section(BUBBLES, [0, 1, 2, 3]) is None
