"""What `open RUN --compare OTHER` accepts: recordings that grow, stored runs, damaged files, and pairs of these."""

import shutil

import pytest

from live_ranks import LiveRanks
from places import DATA
from stagescope.api import open as open_viewer
from stagescope.api import simulate, store
from stagescope.api.run_views import RunFiles, view_compared
from stagescope.vocabulary.errors import InputError, UsageError
from synthetic import Shape, pipeline_timeline

RECORDING = DATA / "recordings" / "v1"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def view_pair(after, before):
    return view_compared(RunFiles([after], {}), RunFiles([before], {}))


def described(view):
    return [
        {key: meta[key] for key in ("title", "span_count", "steps")} for meta in (view.meta, view.other.meta)
    ]


def test_recordings_and_stored_runs_compare_alike(tmp_path):
    stored = tmp_path / "run.stagescope"
    store(RECORDING, out=stored)
    pairs = [(RECORDING, RECORDING), (RECORDING, stored), (stored, RECORDING), (stored, stored)]
    views = [view_pair(*pair) for pair in pairs]
    assert all(described(view) == described(views[0]) for view in views)
    assert len({view.version for view in views}) == 4
    changes = {view.sections["comparison"].data for view in views}
    assert len(changes) == 1


@pytest.mark.parametrize("grows", ["after", "before"])
def test_a_recording_that_grows_is_compared_with_what_it_has_by_then(tmp_path, grows):
    """Whichever side it is on: the fingerprint of both runs decides whether they are read again."""
    places = {name: tmp_path / name for name in ("after", "before")}
    ranks = {name: LiveRanks(place, ranks=2, spans_per_s=100) for name, place in places.items()}
    for each in ranks.values():
        each.write(each.began_ns + 4 * each.step_ns)
    first = view_pair(*places.values())
    ranks[grows].write(ranks[grows].began_ns + 9 * ranks[grows].step_ns)
    second = view_pair(*places.values())
    counts = [(view.meta["span_count"], view.other.meta["span_count"]) for view in (first, second)]
    grown, same = (0, 1) if grows == "after" else (1, 0)
    assert counts[0][grown] < counts[1][grown]
    assert counts[0][same] == counts[1][same]
    assert first.version != second.version


@pytest.mark.parametrize("is_damaged", [(True, False), (False, True)])
def test_damage_of_either_run_is_stated_for_that_run(tmp_path, is_damaged):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    for place in (whole, damaged):
        shutil.copytree(RECORDING, place)
    file = max(damaged.rglob("*.sscope"), key=lambda each: each.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    file.write_bytes(data)
    view = view_pair(*(damaged if each else whole for each in is_damaged))
    stated = tuple(
        any(row["severity"] == "error" for row in meta["diagnostics"])
        for meta in (view.meta, view.other.meta)
    )
    assert stated == is_damaged


def test_a_run_that_is_missing_or_has_no_times_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no such file or directory"):
        open_viewer(RECORDING, compare=tmp_path / "nothing", browser=False)
    costs = simulate("1f1b", ranks=2, microbatches=4).timeline
    times = pipeline_timeline(Shape(ranks=2, microbatches=4, steps=1))
    with pytest.raises(UsageError, match="units of cost cannot be compared with a run in time"):
        open_viewer(times, compare=costs, browser=False)
