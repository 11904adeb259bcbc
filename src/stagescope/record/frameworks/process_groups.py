"""What the observers of the process groups of torch and of Paddle have in common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stagescope.record.exit_status import STATUS_BITS
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.torch_transfers import plain_transfers_of
from stagescope.record.installation import Installation, modules_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.points import Part
    from stagescope.record.recorder import Recorder

LEAVE = "_exit"
"""The function of os that ends a process without anything that it would do at its exit."""

LEAVING_TIMEOUT_S = 2.0
"""How long `leave` may wait for a disk that does not respond."""


class ProcessGroups:
    """The base of observers that record collectives, and transfers outside of schedules."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.installation = Installation(recorder, patches)
        self.collectives = collectives_of(recorder)
        self.counts_only = self.collectives.counts_only
        self.transfers = plain_transfers_of(recorder)
        self.ignores_transfer = self.transfers.ignores

    def install_parts(
        self, module: ModuleType, parts: Iterable[Part], waits: dict[str, Callable[[], None]]
    ) -> None:
        """Install the parts that `module` triggers, those named in `waits` with what observes the waits."""
        for part in parts:
            if part.trigger == module.__name__:
                self.installation.install(part, self, modules_by_name(module), waits.get(part.trigger))

    def leave(self, call: Call) -> Generator[None, Any, None]:
        """Observe the end of distributed training: write everything before it.

        A launcher may kill the process right afterwards, as Ray does with its actors.
        """
        del call
        self.recorder.flush(LEAVING_TIMEOUT_S)
        yield

    def observe_exit(self, guard: Guard) -> None:
        """Observe ``os._exit``, with which trainings end that do not wait for their communication library."""
        self.patches.observe(os, LEAVE, self.end, guard)

    def end(self, call: Call) -> Generator[None, Any, None]:
        """Observe the end of the process: store the recording."""
        status = next(iter((*call.arguments, *call.keywords.values())), None)
        self.recorder.stop("exit", exit_status=status & STATUS_BITS if isinstance(status, int) else None)
        yield
