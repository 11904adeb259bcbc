"""Runs observers of the recorder around a call, as its wrappers do, but without catching what they raise."""

from __future__ import annotations


def during(observation, call):
    """Return the result of `call`, made at the ``yield`` of an observation."""
    next(observation)
    try:
        result = call()
    except BaseException:
        observation.close()
        raise
    try:
        observation.send(result)
    except StopIteration:
        return result
    raise AssertionError("an observation yields once")
