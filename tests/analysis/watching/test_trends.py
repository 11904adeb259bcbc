from stagescope.analysis.watching.step_values import DataRate, StepValues, Subject
from stagescope.analysis.watching.trends import Slowest, Trends, trend_json, trend_step


def values(step, **work):
    found = {Subject("rank", rank=int(name[1:])): value for name, value in work.items()}
    found |= {Subject("iteration"): 200.0, Subject("step"): 150.0, Subject("bubble"): 0.25}
    return StepValues(step, {**found, Subject("part", "jitter"): 50.0})


def test_a_step_names_its_slowest_rank_and_stage_beside_the_median():
    found = trend_step(values(7, r0=10.0, r1=40.0, r2=20.0, r3=12.0), {0: 0, 1: 0, 2: 1, 3: 1})
    assert found.slowest_rank == Slowest(1, 40.0, 16.0)
    assert found.slowest_stage == Slowest(0, 40.0, 30.0)
    assert (found.step, found.iteration_ns, found.window_ns, found.bubble) == (7, 200.0, 150.0, 0.25)
    assert found.lost == {"jitter": 0.25}
    assert found.data is None


def test_what_is_unknown_is_none_and_not_zero():
    found = trend_step(StepValues(3, {}), {})
    assert found[1:] == (None, None, None, {}, None, None, None)
    (json,) = trend_json([found])
    assert json["iteration_ns"] is None
    assert json["slowest_rank"] is None


def test_trends_keep_the_last_steps_and_count_all():
    trends = Trends(most=3)
    trends.add([values(step) for step in range(5)], {}, {4: DataRate("tokens", 12.5)})
    assert trends.count == 5
    assert [step.step for step in trends.since(0)[1]] == [2, 3, 4]
    assert trends.since(0)[0] == 2
    first, steps = trends.since(4)
    assert (first, [(step.step, step.data) for step in steps]) == (4, [(4, DataRate("tokens", 12.5))])
    assert trends.since(5) == (5, [])
    assert trends.since(99)[1] == []
