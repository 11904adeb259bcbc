"""The pipelines of one process: a training may run several schedules, such as those of two models."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PIPELINES = 16
"""Schedules beyond these count as the last one of their class: a training may build a new model for every step."""


class _Pipeline(NamedTuple):
    label: str
    class_name: str
    models: tuple[weakref.ref[Any], ...]

    def has(self, models: Sequence[Any]) -> bool:
        """Return whether these are the models of its stages."""
        return [model() for model in self.models] == list(models)


class Pipelines:
    """Labels for the pipelines of this process: ``1F1B``, and ``1F1B (2)`` for another model with the same schedule.

    A schedule that a training creates again for the same model, such as with another number of micro-batches, is the
    same pipeline.
    """

    def __init__(self) -> None:
        self.facts: dict[str, object] = {}
        self._known: list[_Pipeline] = []

    def label_of(self, schedule: object, stages: Sequence[Any]) -> str:
        """Return the label of the pipeline that a schedule runs with its stages on this rank."""
        class_name = type(schedule).__name__
        models = [getattr(stage, "submod", stage) for stage in stages]
        same_class = [known for known in self._known if known.class_name == class_name]
        for known in same_class:
            if known.has(models):
                return known.label
        if same_class and len(self._known) >= MAX_PIPELINES:
            return same_class[-1].label
        name = class_name.removeprefix("Schedule")
        label = f"{name} ({len(same_class) + 1})" if same_class else name
        self._known.append(_Pipeline(label, class_name, tuple(map(weakref.ref, models))))
        return label
