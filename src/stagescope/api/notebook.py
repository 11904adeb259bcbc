"""Attach the notebook representations to the types of results.

HTML is made by `reports` and `viewer`, which `model` and `analysis` are below and must not import. Therefore the
methods that IPython calls are set when this module is imported, with the first name of the API, and not in the classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.analysis import Report
from stagescope.analysis.statistics.comparison import Comparison
from stagescope.api.simulation import SimulatedStep
from stagescope.model import Timeline
from stagescope.reports.notebook import comparison_html, report_html, simulation_html, timeline_html
from stagescope.viewer.notebook import inline_view

if TYPE_CHECKING:
    from collections.abc import Callable

    Method = Callable[..., Any]

METHODS: dict[type, dict[str, Method]] = {
    # IPython prefers the bundle, which is the interactive viewer; the table is for other front ends.
    Timeline: {
        "_repr_html_": timeline_html,
        "_repr_mimebundle_": lambda timeline, **_: inline_view(timeline),
    },
    Report: {"_repr_html_": report_html},
    Comparison: {"_repr_html_": comparison_html},
    SimulatedStep: {
        "_repr_html_": lambda step: simulation_html(step.simulation, in_cost_units=step.in_cost_units)
    },
}


def attach() -> None:
    """Set the methods of every type in METHODS."""
    for type_, methods in METHODS.items():
        for name, method in methods.items():
            setattr(type_, name, method)


attach()
