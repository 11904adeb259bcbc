"""Pipeline schedules: the order of actions on every rank, and what follows from it.

>>> from stagescope import schedules
>>> print(*schedules.order("zb-h1", ranks=4, microbatches=4)[3])
F3.0 I3.0 F3.1 I3.1 F3.2 I3.2 F3.3 I3.3 W3.0 W3.1 W3.2 W3.3

Uses the standard library only. docs/schedules.md lists every schedule with its source, sizes and options.
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order, parse_action
from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.catalog import NAMES, SCHEDULES, order
from stagescope.schedules.closed_forms import CLOSED_FORMS, predict
from stagescope.schedules.costs import Costs
from stagescope.schedules.layers import split_layers
from stagescope.schedules.memory import ActivationSizes, in_flight, peak_in_flight
from stagescope.schedules.order_file import read_order
from stagescope.schedules.recognition.recognizer import recognize
from stagescope.schedules.recognition.result import Recognition
from stagescope.schedules.search.fastest import Scope, SearchResult, find_fastest
from stagescope.schedules.simulation import Simulation
from stagescope.schedules.simulator import simulate
from stagescope.schedules.validation import validate

__all__ = [
    "CLOSED_FORMS",
    "NAMES",
    "SCHEDULES",
    "Action",
    "ActivationSizes",
    "Costs",
    "Order",
    "Recognition",
    "Scope",
    "SearchResult",
    "Simulation",
    "find_fastest",
    "in_flight",
    "lower_bound",
    "order",
    "parse_action",
    "peak_in_flight",
    "predict",
    "read_order",
    "recognize",
    "simulate",
    "split_layers",
    "validate",
]
