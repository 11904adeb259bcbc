from __future__ import annotations

import pytest

from stagescope.record.frameworks.actions_in_progress import ActionsInProgress

A, B, C = (1, 0, 0, 0), (2, 0, 0, 0), (5, 0, 0, 0)


@pytest.fixture
def actions(recorder):
    return ActionsInProgress(recorder)


def begin(actions, action):
    """Begin an action as the wrapper does; return the action around it, and whether it is entered."""
    outer = actions.recorder.action
    is_entered = outer is None or actions.enters(action, outer)
    if is_entered:
        actions.recorder.action = action
    return outer, is_entered


def end(actions, action, outer):
    if outer is None and actions.recorder.action is action:
        actions.recorder.action = None
    else:
        actions.leave(action, outer)


def test_an_action_inside_of_itself_is_not_entered_at_any_depth(actions):
    begin(actions, A)
    assert not begin(actions, A)[1]
    outer, is_entered = begin(actions, B)
    assert is_entered
    assert not begin(actions, A)[1]
    assert not begin(actions, B)[1]
    end(actions, B, outer)
    assert actions.recorder.action == A
    assert not begin(actions, A)[1]
    end(actions, A, None)
    assert begin(actions, A) == (None, True)


def test_actions_of_two_threads_may_end_in_any_order(actions):
    begin(actions, A)
    outer, _ = begin(actions, B)
    end(actions, A, None)
    assert not begin(actions, B)[1]
    end(actions, B, outer)
    assert actions.recorder.action is None
    assert begin(actions, A) == (None, True)


def test_an_action_that_ends_inside_of_one_of_another_thread_leaves_none_behind(actions):
    begin(actions, A)
    of_other, _ = begin(actions, B)
    outer, _ = begin(actions, C)
    end(actions, B, of_other)
    end(actions, C, outer)
    end(actions, A, None)
    assert all(begin(actions, action)[1] for action in (A, B, C))


def test_the_action_around_one_that_failed_is_still_in_progress(actions):
    begin(actions, A)
    begin(actions, B)
    actions.abandon(B)
    assert not begin(actions, A)[1]
    end(actions, A, None)
    assert begin(actions, B) == (None, True)


def test_after_an_unknown_failure_none_is_in_progress(actions):
    begin(actions, A)
    begin(actions, B)
    actions.abandon(None)
    assert begin(actions, A) == (None, True)
