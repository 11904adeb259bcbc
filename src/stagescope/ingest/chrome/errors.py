"""Errors about Chrome traces of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def no_action_names(path: str | os.PathLike[str], pattern: str | None, names: Sequence[str]) -> InputError:
    """Return the error for a trace in which no slice name matches the pattern of the call, or any common one."""
    wanted = f"the --pattern {pattern!r}" if pattern else "a known naming pattern"
    shown = ", ".join(repr(name[:60]) for name in names) or "none"
    return InputError(
        f"{path}: no slice name matches {wanted}; the most frequent names: {shown}",
        "describe the names of actions, such as --pattern '{kind}_{microbatch}' for forward_3 "
        "(also {stage}, {chunk}, {step}, {rank}, {peer}, and * for anything)",
    )
