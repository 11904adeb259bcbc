import polars as pl

from drawing import timeline_from_text
from stagescope.analysis.statistics.stage_heat import STAGE_HEAT, measure_stage_heat
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines

DRAWN = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .", origin_ns=10**18)


def test_heat_adds_up_to_the_work_of_the_run():
    heat = measure_stage_heat(DRAWN.spans, step_bubbles(DRAWN.spans, find_pipelines(DRAWN.spans)))
    assert heat.rows() == [(0, 0, 6000, 0, 2000, 4), (0, 1, 6000, 0, 2000, 4)]
    assert heat.columns == STAGE_HEAT.names


def test_idle_time_of_ranks_without_a_window_is_null():
    bubbles = step_bubbles(DRAWN.spans, find_pipelines(DRAWN.spans)).filter(pl.col("rank") == 0)
    heat = measure_stage_heat(DRAWN.spans, bubbles)
    assert heat["idle_ns"].to_list() == [2000, None]
