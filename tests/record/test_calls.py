"""Arguments are found by name in all versions, and errors of the recorder never propagate."""

from __future__ import annotations

import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.record.calls import Signature, never_raises


def step(model, data, current_microbatch=None, *, vp_stage=None, **others):
    return model, data, current_microbatch, vp_stage, others


@given(st.integers(0, 3), st.booleans())
def test_argument_is_found_by_position_or_keyword(by_place, with_stage):
    values = {"model": 1, "data": 2, "current_microbatch": 3}
    names = list(values)
    arguments = [values[name] for name in names[:by_place]]
    keywords = {name: values[name] for name in names[by_place:]} | ({"vp_stage": 4} if with_stage else {})
    call = Signature(step).call(arguments, keywords)
    assert {name: call.get(name) for name in values} == values
    assert call.get("vp_stage") == (4 if with_stage else None)


def test_missing_argument_has_the_default():
    call = Signature(step).call([1], {})
    assert call.get("current_microbatch") is None
    assert call.get("current_microbatch", 7) == 7
    assert call.get("removed_in_a_later_version", "default") == "default"


def test_function_without_signature_has_only_keywords():
    call = Signature(iter).call([[1]], {"named": 2})
    assert call.get("named") == 2
    assert call.get("model") is None


def test_variadic_function_has_only_keywords():
    call = Signature(lambda *args, **kwargs: (args, kwargs)).call([1, 2], {"model": 3})
    assert call.get("model") == 3
    assert call.get("args") is None


class Reader:
    def __init__(self):
        self.warnings = []
        self.recorder = types.SimpleNamespace(warn=self.warnings.append)

    @never_raises(default="nothing")
    def read(self, value):
        return value.name


def test_failing_reader_returns_its_default_and_warns():
    reader = Reader()
    assert reader.read(types.SimpleNamespace(name="found")) == "found"
    assert reader.warnings == []
    assert reader.read(None) == "nothing"
    assert reader.warnings == [
        """cannot record all of test_calls: AttributeError("'NoneType' object has no attribute 'name'")"""
    ]


def test_system_exit_propagates():
    class Interrupts:
        @property
        def name(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reader().read(Interrupts())
