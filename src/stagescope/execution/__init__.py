"""Runs a function on many items, on the cores of this machine or on a cluster.

An executor has one method: `map(function, items)` yields the results in the order of the items. Functions are those of
modules, and write what is large themselves: results go through one process. Nothing depends on where they run, so the
results are the same.
"""

from stagescope.execution.background import in_background
from stagescope.execution.choice import checked_address, executor_for, for_large_items
from stagescope.execution.executor import Executor, InThisProcess
from stagescope.execution.spawning import memory_returned_soon

__all__ = [
    "Executor",
    "InThisProcess",
    "checked_address",
    "executor_for",
    "for_large_items",
    "in_background",
    "memory_returned_soon",
]
