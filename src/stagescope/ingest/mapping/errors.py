"""Errors about traces of other tools whose slices do not give a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

LONGEST_SHOWN = 60
INSPECT = "stagescope inspect FILE lists what is in it and proposes a mapping (docs/mapping.md)"


def no_action_names(path: str | os.PathLike[str], pattern: str | None, names: Sequence[str]) -> InputError:
    """Return the error for a trace in which no slice name matches the pattern of the call, or any common one."""
    wanted = f"the --pattern {pattern!r}" if pattern else "a known naming pattern"
    return InputError(
        f"{path}: no slice name matches {wanted}; the most frequent names: {_shown(names)}",
        "describe the names of actions, such as --pattern '{kind}_{microbatch}' for forward_3 "
        "(also {stage}, {chunk}, {step}, {rank}, {peer}, and * for anything), or what is in the arguments of events, "
        f"such as --map microbatch=args.microbatch --map step=args.iteration; {INSPECT}",
    )


def no_slices(path: str | os.PathLike[str], faults: Sequence[str]) -> InputError:
    """Return the error for a trace without any slice that can be read; `faults` are those of its events."""
    why = f": {faults[0]}" if faults else ", only metadata, counters or marks of single moments"
    return InputError(f"{path}: the trace has no slice that can be read{why}")


def no_mapped_spans(path: str | os.PathLike[str], mapping: str, names: Sequence[str]) -> InputError:
    """Return the error for a trace in which a mapping finds no forward and no backward."""
    return InputError(
        f"{path}: the mapping {mapping} finds no forward or backward; the most frequent names: {_shown(names)}",
        INSPECT,
    )


def no_identity(path: str | os.PathLike[str], names: Sequence[str], proposals: Sequence[str]) -> InputError:
    """Return the error for actions of which neither the step nor the micro-batch is known."""
    options = " ".join(proposals) or "--map microbatch=args.KEY --map step=args.KEY"
    return InputError(
        f"{path}: neither step nor micro-batch of the actions is known ({_shown(names)})",
        f"state where they are, such as {options}; {INSPECT}",
    )


def no_values(path: str | os.PathLike[str], field: str, expression: str) -> InputError:
    """Return the error for an expression that has no value, or one below 0, for every action."""
    return InputError(
        f"{path}: {field} = {expression} has no value from 0 on in any forward or backward", INSPECT
    )


def wrong_steps(path: str | os.PathLike[str], found: int, key: str, iterations: int) -> InputError:
    """Return the error for steps that contradict the iterations that the events state."""
    return InputError(
        f"{path}: {found:,} steps were found, but args.{key} has {iterations:,} different values",
        f"map it, with --map step=args.{key}",
    )


def repeated_actions(
    path: str | os.PathLike[str], repeated: int, example: str, option: str | None
) -> InputError:
    """Return the error for actions that occur more than once in a step; `option` selects one of each."""
    what = f"{path}: {repeated:,} actions occur more than once in a step, such as {example}"
    if option is not None:
        return InputError(f"{what}: the trace holds several runs; choose one, such as {option}")
    return InputError(what, f"map what distinguishes them: step, microbatch, stage or rank; {INSPECT}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:LONGEST_SHOWN]) for name in names) or "none"
