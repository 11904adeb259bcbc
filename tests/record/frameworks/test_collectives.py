"""The numbers of collectives, in groups that replace those of torch."""

from __future__ import annotations

from threading import Thread
from types import MethodType, SimpleNamespace

import polars as pl
import pytest

from observing import during
from stagescope import api as workflow
from stagescope.record.frameworks import collectives as module
from stagescope.record.frameworks.collectives import collectives_of, size_of
from stagescope.record.frameworks.groups import Group
from stagescope.record.frameworks.torch_actions import ActionRanges, RangeEnd


class ProcessGroup:
    """A process group whose description is its name."""

    def __init__(self, name):
        self.name = name


class Tensor:
    nbytes = 24


@pytest.fixture
def collectives(recorder, monkeypatch):
    monkeypatch.setattr(module, "group_of", lambda owner: Group(owner.name, 2))
    recorder.begin_step(0)
    return collectives_of(recorder)


def issue(collectives, group):
    """Issue a collective that is never waited for, as the wrapper of a process group's method does."""
    if collectives.counts_only((group,)):
        return
    observation = collectives.observe("all_reduce", group, ([Tensor()], object()))
    if next(observation, observation) is not observation:
        with pytest.raises(StopIteration):
            observation.send(None)


def numbers(recorder, tmp_path):
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans.filter(pl.col("kind") == "collective")
    return spans.sort("start_ns").select("name", "pair", "bytes").rows()


def test_counted_collectives_have_numbers_whether_their_group_was_known_or_not(
    recorder, tmp_path, collectives
):
    known, new = ProcessGroup("known"), ProcessGroup("new")
    issue(collectives, known)
    recorder.action = (1, 0, 0, 0)
    for _ in range(3):
        issue(collectives, known)
        issue(collectives, new)
    recorder.action = None
    issue(collectives, known)
    issue(collectives, new)
    assert {group.text: group.counted for group in collectives._groups_by_text.values()} == {
        "known": 3,
        "new": 3,
    }
    assert numbers(recorder, tmp_path) == [
        ("all_reduce in known", 0, 24),
        ("all_reduce in known", 4, 24),
        ("all_reduce in new", 3, 24),
    ]


def test_numbers_go_on_where_another_object_is_the_same_group(recorder, tmp_path, collectives):
    for _ in range(3):
        issue(collectives, ProcessGroup("same"))
    assert not collectives._groups
    assert [number for _, number, _ in numbers(recorder, tmp_path)] == [0, 1, 2]


def test_collectives_outside_of_recorded_steps_have_numbers(recorder, tmp_path, collectives):
    group = ProcessGroup("ranks")
    issue(collectives, group)
    recorder.switch(on=False)
    issue(collectives, group)
    recorder.switch(on=True)
    issue(collectives, group)
    assert [number for _, number, _ in numbers(recorder, tmp_path)] == [0, 2]


def test_collectives_of_another_thread_are_recorded_without_a_place_also_in_actions(
    recorder, tmp_path, collectives
):
    groups = ProcessGroup("steps"), ProcessGroup("checkpoint")
    issue(collectives, groups[1])
    recorder.action = (1, 3, 0, 0)
    issue(collectives, groups[0])
    with collectives.reducing():
        recorder.is_one_by_one = False
        saving = Thread(target=issue, args=(collectives, groups[1]))
        saving.start()
        saving.join()
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans.select("kind", "name", "pair", "stage", "wait_start_ns").rows()
    name = "all_reduce in checkpoint"
    assert [row[:4] for row in spans] == [("collective", name, 0, None), ("collective", name, 1, None)]
    assert spans[1][4] is None, "a step does not wait for another thread"


class Work:
    def wait(self):
        return True


def test_a_forked_child_knows_nothing_of_what_is_under_way_in_its_parent(recorder, tmp_path, collectives):
    group, works = ProcessGroup("ranks"), [Work(), Work()]
    for work in works:
        during(collectives.observe("all_reduce", group, ()), lambda work=work: work)
    collectives.begin_coalescing()
    recorder.restart_in_child()
    recorder.begin_step(1)
    list(collectives.works.observe_wait(works[0]))
    issue(collectives, group)
    assert [number for _, number, _ in numbers(recorder, tmp_path)] == [2]


def test_a_user_discards_its_own_handles_only(collectives):
    works, waited = [Work(), Work()], []
    other = SimpleNamespace()
    other.waited = MethodType(lambda self, *moments: waited.append(moments), other)
    for work, call in zip(works, (other.waited, waited.append), strict=True):
        collectives.works.watch(work, call)
    collectives.works.watch(Work(), waited.append)
    collectives.works.forget(waited)
    assert list(collectives.works._waits.ids) == [id(works[0])]
    collectives.works.forget(other)
    assert not collectives.works._waits.ids


def test_result_of_an_observed_call_is_passed_on(collectives):
    assert during(collectives.observe("barrier", ProcessGroup("ranks"), ()), lambda: None) is None


@pytest.mark.parametrize(
    ("name", "counts"), [("PP:1F0", True), ("PP:1UNSHARD", False), ("PP:1REDUCE_GRAD", False)]
)
def test_collectives_are_counted_in_the_ranges_of_actions(recorder, collectives, name, counts):
    messages = SimpleNamespace(receives=0)
    passes = SimpleNamespace(is_recorded=lambda *action: action == (1, 1, 0), seen=set())
    shared = SimpleNamespace(recorder=recorder, messages=messages, collectives=collectives, passes=passes)
    ranges, entered = ActionRanges(shared), SimpleNamespace(name=name)
    ranges.entered((entered,), {}, entered)
    assert recorder.counts_collectives is counts
    RangeEnd(ranges).begin((entered, None, None, None), {})
    assert not recorder.counts_collectives


def test_size_is_that_of_all_tensors_in_a_list():
    assert size_of([[Tensor(), Tensor()], Tensor()]) == 72
    assert [size_of(value) for value in (Tensor(), [], (), None, object(), [None])] == [24, 0, 0, 0, 0, 0]
