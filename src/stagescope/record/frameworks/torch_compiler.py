"""Keeps all hooks out of functions that torch.compile traces (torch/compiler/__init__.py, torch 2.5 to 2.15)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stagescope.record import wrappers

if TYPE_CHECKING:
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder


def instrument(_dynamo: ModuleType, _recorder: Recorder, _patches: Patches) -> None:
    """Let wrappers ask torch whether they are being traced; nothing is wrapped."""
    is_compiling = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", None)
    if is_compiling is not None:
        wrappers.pass_while(is_compiling)
