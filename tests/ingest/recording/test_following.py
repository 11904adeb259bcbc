"""Recordings that grow are followed, and give what reading the whole file gives."""

from __future__ import annotations

import os

import pytest

from pipeline_recordings import RANKS, planted_training, write_training
from stagescope.ingest.recording.following import LEAST_BYTES_OF_FILE, Follower
from stagescope.ingest.recording.reader import read_recordings
from stagescope.vocabulary.errors import InputError

STEPS = 12


def grown(paths, sizes):
    """Yield after each file has grown to one of these shares of its size."""
    whole = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    for share in sizes:
        for path, data in zip(paths, whole, strict=True):
            path.write_bytes(data[: round(share * len(data))])
        yield


def test_a_recording_that_grows_is_read_like_a_whole_one(tmp_path):
    paths = write_training(tmp_path, planted_training(STEPS, 0, (), 1))
    whole = read_recordings(paths)
    follower = Follower([tmp_path])
    complete = []
    for _ in grown(paths, (0.001, 0.1, 0.1003, 0.42, 0.8, 1.0)):
        follower.read()
        complete.append(follower.complete_step())
    assert complete == sorted(complete)
    assert 0 < complete[-2] < complete[-1] == follower.latest_step == STEPS - 1
    followed = follower.timeline()
    assert followed.spans.equals(whole.spans)
    assert followed.steps.equals(whole.steps)
    assert followed.diagnostics.equals(whole.diagnostics)
    assert not follower.read()  # nothing more to read


def test_steps_are_complete_when_all_ranks_that_run_have_ended_the_next_one(tmp_path):
    training = planted_training(STEPS, 0, (), 1)
    training[2] = training[2][:5]
    write_training(tmp_path, training, end=False)
    follower = Follower([tmp_path])
    follower.read()
    assert (follower.complete_step(), follower.latest_step) == (3, STEPS - 1)
    assert follower.complete_step(is_over=True) == 4


def cut_off(training, **left):
    """Return a training whose ranks ended in the last step, after so many of its actions; others before it."""
    cut = [own[:-1] for own in training]
    for name, count in left.items():
        rank = int(name.removeprefix("rank"))
        cut[rank].append(training[rank][-1][:count])
    return cut


@pytest.mark.parametrize("left", [{"rank0": 3, "rank1": 1}, {f"rank{rank}": 2 for rank in range(RANKS)}])
def test_the_step_in_which_processes_ended_is_not_complete(tmp_path, left):
    write_training(tmp_path, cut_off(planted_training(STEPS, 0, (), 1), **left))
    follower = Follower([tmp_path])
    follower.read()
    assert follower.latest_step == STEPS - 1
    assert follower.complete_step() == follower.complete_step(is_over=True) == STEPS - 2


def test_a_process_that_was_killed_in_a_step_and_ones_that_ended_in_it_have_the_same_last_step(tmp_path):
    training = cut_off(planted_training(STEPS, 0, (), 1), rank0=3)
    killed = [own[:-1] for own in training[1:2]]
    write_training(tmp_path, training[:1])
    write_training(tmp_path / "killed", [[], *killed], end=False)
    (tmp_path / "killed" / "rank-00000.sscope").unlink()
    follower = Follower([tmp_path])
    follower.read()
    assert follower.complete_step() < STEPS - 3
    assert follower.complete_step(is_over=True) == STEPS - 3


def test_ranks_without_steps_or_without_marked_steps_do_not_shorten_a_training_that_ended(tmp_path):
    training = planted_training(STEPS, 0, (), 1)
    training[1] = []
    training[2] = [own[:-1] for own in training[2]]
    write_training(tmp_path, training)
    follower = Follower([tmp_path])
    follower.read()
    assert follower.complete_step() == STEPS - 1


def test_forgotten_steps_are_not_in_memory_and_later_ones_are_complete(tmp_path):
    paths = write_training(tmp_path, planted_training(STEPS, 0, (), 1))
    follower = Follower([tmp_path])
    follower.read()
    assert follower.first_step == 0
    follower.forget_before(5)
    assert 5 <= follower.first_step <= 6
    kept, whole = follower.timeline().spans, read_recordings(paths).spans
    later = whole.filter(whole["step"] >= follower.first_step)
    assert kept.filter(kept["step"] >= follower.first_step).equals(later)


def test_memory_is_bounded(tmp_path):
    paths = write_training(tmp_path, planted_training(400, 0, (), 1))
    assert paths[0].stat().st_size > 2 * LEAST_BYTES_OF_FILE
    follower = Follower([tmp_path], most_bytes=0)
    while follower.read():
        pass
    kept = follower.timeline().spans
    assert 0 < follower.first_step < 399
    assert kept.estimated_size() < RANKS * 4 * LEAST_BYTES_OF_FILE


def test_the_process_of_a_rank_that_began_last_is_followed(tmp_path):
    training = planted_training(3, 0, (), 1)
    write_training(tmp_path, training, pid=1, process_start_ns=1)
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace(".", "-7.", 1)))
    write_training(tmp_path, planted_training(STEPS, 0, (), 1), pid=2, process_start_ns=2, end=False)
    follower = Follower([tmp_path])
    follower.read()
    assert follower.latest_step == STEPS - 1
    assert {source.rpartition("/")[2] for source in follower.timeline().ranks["source"]} == {
        f"rank-{rank:05}.sscope" for rank in range(RANKS)
    }


def test_damage_is_counted_and_the_rest_is_used(tmp_path):
    paths = write_training(tmp_path, planted_training(STEPS, 0, (), 1))
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    paths[1].write_bytes(data)
    follower = Follower([tmp_path])
    follower.read()
    assert "frames.damaged" in follower.timeline().diagnostics["code"].to_list()
    assert follower.complete_step() == STEPS - 1


def test_directories_without_recordings_are_errors(tmp_path):
    follower = Follower([tmp_path])
    follower.read()
    with pytest.raises(InputError, match="no recording"):
        follower.timeline()
    with pytest.raises(InputError, match="no recording"):
        Follower([tmp_path / "none"]).read()


def test_a_copy_of_a_file_counts_once(tmp_path):
    paths = write_training(tmp_path, planted_training(STEPS, 0, (), 1), pid=1)
    whole = read_recordings(paths)
    (tmp_path / "backup.sscope").write_bytes(paths[2].read_bytes())
    follower = Follower([tmp_path])
    follower.read()
    timeline = follower.timeline()
    assert timeline.spans.equals(whole.spans)
    assert timeline.diagnostics["code"].to_list() == ["recording.copy"]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    pipe = tmp_path / "rank-00000.sscope"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="a pipe"):
        Follower([pipe]).read()
