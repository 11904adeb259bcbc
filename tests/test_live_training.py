"""A running training as the local server follows it, with simulated ranks that write while it is followed."""

import time
from pathlib import Path

import pytest

from live_ranks import LiveRanks
from running_server import PATIENCE_S, assets_in, serving
from stagescope import api
from stagescope.api import live_training
from stagescope.api.live_training import LiveTraining, is_running, without_rows
from stagescope.vocabulary.errors import InputError


def until(condition, ranks=None):
    """Wait for a condition while ranks go on."""
    last_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < last_s
        if ranks is not None:
            ranks.write()
        time.sleep(0.1)


@pytest.fixture
def ranks(tmp_path):
    """Return four ranks that have been training for two seconds."""
    found = LiveRanks(tmp_path / "recordings", spans_per_s=400)
    time.sleep(0.5)
    found.write()
    return found


@pytest.fixture
def training(ranks, tmp_path):
    until(lambda: ranks.write() or time.monotonic_ns() - ranks.began_ns > 4 * ranks.step_ns)
    found = LiveTraining(tmp_path / "recordings")
    found.start()
    yield found
    found.close()


def steps_of(training):
    return [step["step"] for step in training.current.meta["steps"]]


def test_new_steps_become_new_versions_and_measured_steps_a_trend(training, ranks):
    first, shown = training.current.version, steps_of(training)
    kept = []
    # A page that shows the first version asks for it all the time.
    until(lambda: kept.append(training.version(first)) or steps_of(training)[-1] >= shown[-1] + 3, ranks)
    assert training.current.version != first
    assert None not in kept
    until(lambda: training.training["measured"] >= 3, ranks)
    trend = training.trend_since(0)
    assert [step["step"] for step in trend["steps"]] == list(
        range(trend["steps"][0]["step"], trend["steps"][-1]["step"] + 1)
    )
    step = trend["steps"][-1]
    assert step["iteration_ns"] == pytest.approx(ranks.step_ns, rel=0.01)
    assert 0 < step["bubble"] < 1
    assert step["slowest_rank"]["work_ns"] >= step["slowest_rank"]["median_ns"] > 0
    assert training.problem is None


def test_new_spans_are_shown_before_their_steps_are_measured(training, ranks, monkeypatch):
    calls = []
    watcher = training._watcher
    update, show = watcher.update, training.show

    def noted(*, measure=True, latest_only=False):
        found = update(measure=measure, latest_only=latest_only)
        calls.append(("measured" if found.steps else "read", watcher.position))
        return found

    monkeypatch.setattr(watcher, "update", noted)
    monkeypatch.setattr(training, "show", lambda run: (show(run), calls.append(("shown", watcher.position))))
    until(lambda: sum(what == "measured" for what, _ in calls) >= 3, ranks)
    for place, (what, position) in enumerate(calls):
        if what == "measured" and place:
            shown = [at for name, at in calls[:place] if name == "shown"]
            before = [at for name, at in calls[:place] if name == "read"]
            assert shown[-1:] == before[-1:] or position == before[-1]


def test_values_of_the_trend_are_those_of_the_report(training, ranks, tmp_path):
    until(lambda: training.training is not None and training.training["measured"] >= 3, ranks)
    ranks.end()
    report = api.analyze(api.read(tmp_path / "recordings"))
    bubbles = dict(report.steps.select("step", "bubble_fraction").iter_rows())
    for step in training.trend_since(0)["steps"]:
        assert step["bubble"] == bubbles[step["step"]]


def test_state_has_every_rank_with_its_step_and_last_action(training, ranks):
    until(lambda: training.training is not None, ranks)
    rows = training.training["ranks"]
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert {row["condition"] for row in rows} == {"running"}
    assert all(row["step"] is not None and row["doing"].endswith("s ago") for row in rows)
    assert (training.training["rank_count"], training.training["dropped_spans"]) == (4, 0)


def test_analysis_of_complete_steps_is_part_of_later_versions(training, ranks):
    until(lambda: "verdict" in training.current.meta["sections"], ranks)
    run = training.current
    assert {"idle", "critical_path", "analyzed"} <= set(run.meta["sections"])
    incomplete = run.meta["steps"][-1]
    assert incomplete["window_ns"] is None
    assert run.meta["steps"][-3]["window_ns"] > 0


def test_a_step_of_more_spans_than_are_analyzed_together_is_analyzed_alone(training, ranks, monkeypatch):
    monkeypatch.setattr(live_training, "ANALYZED_SPANS", 10)
    until(
        lambda: training._analyzed is not None and training._analyzed.first == training._analyzed.last, ranks
    )
    until(lambda: "verdict" in training.current.meta["sections"], ranks)


def test_rank_that_others_leave_behind_comes_first(training, ranks):
    until(lambda: training.training is not None, ranks)
    last_s = time.monotonic() + PATIENCE_S
    while not training.training["behind_count"]:
        assert time.monotonic() < last_s
        ranks.write(behind={2: 2})
        time.sleep(0.1)
    assert training.training["ranks"][0]["rank"] == 2


def test_files_of_versions_are_removed(training, ranks):
    folder = Path(training._folder.name)
    shown = {training.current.version}
    until(lambda: shown.add(training.current.version) or len(shown) > 6, ranks)
    assert len(list(folder.iterdir())) <= 4
    training.close()
    assert not folder.exists()


def test_version_whose_page_is_being_loaded_is_kept(training, ranks, tmp_path):
    with serving(training, assets_in(tmp_path / "assets")) as visitor:
        visitor.enter()
        visitor.version = visitor.ask("/")[1]["location"].split("/")[2]
        shown = set()
        until(lambda: shown.add(training.current.version) or len(shown) > 5, ranks)
        assert visitor.ask(f"/run/{visitor.version}/")[0] == 200
        assert visitor.json("meta")["version"] == visitor.version


def test_training_that_ended_is_over(training, ranks):
    ranks.end()
    until(lambda: training.training is not None and training.training["outcome"] == "is over")


def test_only_recordings_that_are_being_written_are_a_running_training(ranks, tmp_path):
    assert is_running(tmp_path / "recordings")
    assert not is_running(tmp_path / "recordings" / "rank-00000.sscope")
    ranks.end()
    assert not is_running(tmp_path / "recordings")
    assert not is_running()


def test_without_a_recording_there_is_nothing_to_follow(tmp_path):
    with pytest.raises(InputError):
        LiveTraining(tmp_path)


def test_running_training_is_followed_and_all_of_it_is_read_on_request(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with api.prepare_viewer(tmp_path / "recordings") as viewer:
        assert viewer.is_live
    with api.prepare_viewer(tmp_path / "recordings", live=False) as viewer:
        assert not viewer.is_live
    ranks.end()
    with api.prepare_viewer(tmp_path / "recordings") as viewer:
        assert not viewer.is_live


def test_sentences_of_steps_that_are_not_shown_lead_nowhere():
    objects = {"verdict": {"why": "w", "findings": [{"text": "t", "step": 1, "rank": 0, "row": 7}]}}
    assert without_rows(objects)["verdict"]["findings"] == [{"text": "t", "step": 1, "rank": 0, "row": None}]
    assert without_rows({"ledger": {}}) == {"ledger": {}}
