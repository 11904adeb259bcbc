"""The windows of pipelines."""

from planted_runs import Shape, random_times, run
from stagescope.analysis.idle.step_windows import STEP_WINDOWS, find_step_windows
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines


def test_windows_equal_those_of_the_bubble():
    timeline = run(random_times(Shape(pipelines=3, steps=5)))
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    windows = find_step_windows(timeline.spans, pipelines)
    bubbles = step_bubbles(timeline.spans, pipelines).select(
        "pipeline", "step", "window_start_ns", "window_end_ns", "window_ns"
    )
    assert windows.drop("ranks").rows() == bubbles.unique().sort("pipeline", "step").rows()
    assert set(windows["ranks"]) == {4}


def test_empty_input_gives_the_declared_table():
    timeline = empty_timeline()
    windows = find_step_windows(timeline.spans, find_pipelines(timeline.spans))
    assert dict(windows.schema) == dict(STEP_WINDOWS.schema)
