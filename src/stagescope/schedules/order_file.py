"""An order as text: our notation, one rank per line, or the CSV of torch.distributed.pipelining.

    ours    F0.0 F0.1 B0.0 F3.1+B0.1     blanks between the actions; lines that begin with # are comments
    torch   0F0,0F1,0B0,(3F1;0B1)OVERLAP_F_B   one row per rank, an empty cell is a slot without an action

torch's schedules also exist with their communication spelled out (0SEND_F0, 0RECV_B1, 0UNSHARD, 0RESHARD,
0REDUCE_GRAD). Those cells say when something is sent or gathered, which a simulation decides by itself: they are
left out and counted. Source: `_Action` in torch 2.13, torch/distributed/pipelining/schedules.py.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, parse_action
from stagescope.vocabulary.errors import InputError, OutputError, ScheduleError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from stagescope.schedules.action import Order

_OURS = re.compile(r"[FBIW]\d+\.\d+")
_TORCH_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_TORCH_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_TORCH_OTHER = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


@dataclass(frozen=True)
class OrderFile:
    """What a file holds: the order, and how often each kind of action that is no job was left out."""

    order: Order
    skipped: Mapping[str, int]


def read_order(path: str | os.PathLike[str]) -> OrderFile:
    """Return the order in a file; which of the two notations it is in, its first action tells.

    The n-th line with something in it is rank n; in torch's CSV every line is a rank. Nothing is checked but the
    spelling: `validate` says whether the order can be run. Raises InputError for a file that cannot be read,
    ScheduleError for a word that is no action and for a file without any.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError.no_such_path(path) from None
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from None
    except UnicodeDecodeError:
        raise InputError.damaged(path, "no text in UTF-8, so no order of a schedule") from None
    return parse_order(text, path)


def parse_order(text: str, where: str | os.PathLike[str] = "order") -> OrderFile:
    r"""Return the order that a text holds, see read_order; `where` names the text in errors.

    >>> parse_order("0F0,0SEND_F0,,0B0\n1RECV_F0,1F0,1B0").order[1]
    [Action(kind='F', stage=1, microbatch=0, partner=None), Action(kind='B', stage=1, microbatch=0, partner=None)]
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if not line.startswith("#")]
    first = next((line for _, line in lines if line), "")
    skipped: Counter[str] = Counter()
    if _OURS.match(first):
        rows = [_our_row(line, number, where) for number, line in lines if line]
    else:
        while lines and not lines[-1][1]:
            lines.pop()
        rows = [_torch_row(line, number, where, skipped) for number, line in lines]
    if not any(rows):
        raise ScheduleError.empty_order(where)
    return OrderFile(dict(enumerate(rows)), dict(skipped))


def order_text(order: Order) -> str:
    """Return an order in our notation, which parse_order reads; ranks in their order.

    >>> print(order_text({0: [parse_action("F0.0"), parse_action("B0.0")]}), end="")
    F0.0 B0.0
    """
    return "".join(" ".join(map(str, order[rank])) + "\n" for rank in sorted(order))


def torch_csv(order: Order) -> str:
    """Return an order as torch's CSV of computations, which `_load_csv` of its schedules reads.

    >>> print(torch_csv({0: [parse_action("F3.1+B0.1"), parse_action("W0.1")]}), end="")
    (3F1;0B1)OVERLAP_F_B,0W1
    """
    return "".join(",".join(map(_torch_cell, order[rank])) + "\n" for rank in sorted(order))


def write_order(order: Order, path: str | os.PathLike[str]) -> None:
    """Write an order: torch's CSV where the name ends in .csv, else our notation. An existing file is replaced.

    Raises OutputError where the file cannot be written.
    """
    target = Path(path)
    text = torch_csv(order) if target.suffix.lower() == ".csv" else order_text(order)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None


def _our_row(line: str, number: int, where: str | os.PathLike[str]) -> list[Action]:
    actions = []
    for word in line.split():
        try:
            actions.append(parse_action(word))
        except ScheduleError:  # noqa: PERF203 - the word's place belongs into the message
            raise ScheduleError.not_in_file(where, number, word) from None
    return actions


def _torch_row(line: str, number: int, where: str | os.PathLike[str], skipped: Counter[str]) -> list[Action]:
    actions = []
    for word in _cells(line):
        other = _TORCH_OTHER.fullmatch(word)
        action = _torch_action(word)
        if other:
            skipped[other[1]] += 1
        elif action is not None:
            actions.append(action)
        elif word:
            raise ScheduleError.not_in_file(where, number, word)
    return actions


def _cells(line: str) -> Iterable[str]:
    return (cell.strip().strip('"').strip() for cell in line.split(","))


def _torch_action(word: str) -> Action | None:
    pair = _TORCH_PAIR.fullmatch(word)
    jobs = [_TORCH_ACTION.fullmatch(part.strip()) for part in (pair.groups() if pair else (word,))]
    found = [Action(job[2], int(job[1]), int(job[3])) for job in jobs if job]
    if len(found) < len(jobs):
        return None
    return found[0]._replace(partner=found[1]) if pair else found[0]


def _torch_cell(action: Action) -> str:
    jobs = [f"{job.stage}{job.kind}{job.microbatch}" for job in action.parts]
    return jobs[0] if len(jobs) == 1 else f"({';'.join(jobs)})OVERLAP_F_B"
