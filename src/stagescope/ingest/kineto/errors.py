"""Errors about traces of torch.profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


ANNOTATE = (
    "put \"with torch.profiler.record_function(f'F{stage}.{microbatch}'):\" around each forward (B around each "
    "backward) and profile with ProfilerActivity.CPU; or start the training with: "
    "stagescope run --also kineto -- torchrun ... train.py"
)
NUMBERED = "if the numbers of the annotations are micro-batches, not layers or steps"


def no_pipeline(
    paths: Sequence[str | os.PathLike[str]], reasons: Sequence[str] = (), likely: str | None = None
) -> InputError:
    """Return the error for traces that name no action and from which none can be inferred, with the `reasons`.

    `likely` is a pattern that annotations match, if their numbers are those of micro-batches.
    """
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return InputError(
        f"no pipeline action in {paths[0]}{more}: it has no annotation such as PP:1F0 or Forward 0, "
        + "; ".join(["and its operators show no forward and backward", *reasons]),
        ANNOTATE if likely is None else f"{NUMBERED}, add --pattern '{likely}'",
    )


def no_pipeline_in_damaged(path: str | os.PathLike[str], damage: Sequence[str]) -> InputError:
    """Return the error for traces without an action in their readable part, with the `damage` of one of them."""
    return InputError.damaged(path, f"no pipeline action in its readable part: {'; '.join(damage)}")
