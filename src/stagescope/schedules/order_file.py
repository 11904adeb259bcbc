"""Reading of an order from text: stagescope's notation, or the CSV of torch.distributed.pipelining.

    stagescope  F0.0 F0.1 B0.0 F3.1+B0.1     one line per rank; lines that begin with # are comments
    torch       0F0,0F1,0B0,(3F1;0B1)OVERLAP_F_B   one row per rank, an empty cell is a slot without an action

torch can also write schedules with explicit communication (0SEND_F0, 0RECV_B1, 0UNSHARD, 0RESHARD, 0REDUCE_GRAD).
These cells are counted and skipped, since a simulation decides on its own when to send and gather. Source: `_Action`
in torch 2.13, torch/distributed/pipelining/schedules.py.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, parse_action
from stagescope.vocabulary.errors import InputError, ScheduleError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from stagescope.schedules.action import Order

_OWN_ACTION = re.compile(r"[FBIW]\d+\.\d+")
_TORCH_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_TORCH_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_TORCH_OTHER = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


@dataclass(frozen=True)
class OrderFile:
    """The order of a file, and how often each kind of communication cell was skipped."""

    order: Order
    skipped: Mapping[str, int]


def read_order(path: str | os.PathLike[str]) -> OrderFile:
    """Return the order in a file, in the notation of its first action.

    The n-th line that is not blank is rank n; in torch's CSV blank lines count, since a rank may be empty. Only the
    notation is checked; `validate` checks whether the order can run. Raises InputError for a file that cannot be read
    and ScheduleError for an invalid action or a file without actions.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError.no_such_path(path) from None
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from None
    except UnicodeDecodeError:
        raise InputError.damaged(path, "not UTF-8 text, so it cannot be an order") from None
    return parse_order(text, path)


def parse_order(text: str, where: str | os.PathLike[str] = "order") -> OrderFile:
    r"""Return the order in a text, as `read_order` does; `where` names the text in errors.

    >>> parse_order("0F0,0SEND_F0,,0B0\n1RECV_F0,1F0,1B0").order[1]
    [Action(kind='F', stage=1, microbatch=0, partner=None), Action(kind='B', stage=1, microbatch=0, partner=None)]
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if not line.startswith("#")]
    first = next((line for _, line in lines if line), "")
    skipped: Counter[str] = Counter()
    # The two notations cannot be confused: torch begins with a stage number or a parenthesis.
    if _OWN_ACTION.match(first):
        rows = [_own_row(line, number, where) for number, line in lines if line]
    else:
        while lines and not lines[-1][1]:  # blank lines at the end of a file are no ranks
            lines.pop()
        rows = [_torch_row(line, number, where, skipped) for number, line in lines]
    if not any(rows):
        raise ScheduleError.empty_order(where)
    return OrderFile(dict(enumerate(rows)), dict(skipped))


def _own_row(line: str, number: int, where: str | os.PathLike[str]) -> list[Action]:
    actions = []
    for word in line.split():
        try:
            actions.append(parse_action(word))
        except ScheduleError:  # noqa: PERF203 - the message needs the line of the word
            raise ScheduleError.invalid_action_in_file(where, number, word) from None
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
            raise ScheduleError.invalid_action_in_file(where, number, word)
    return actions


def _cells(line: str) -> Iterable[str]:
    return (cell.strip().strip('"').strip() for cell in line.split(","))


def _torch_action(word: str) -> Action | None:
    pair = _TORCH_PAIR.fullmatch(word)
    matches = [_TORCH_ACTION.fullmatch(part.strip()) for part in (pair.groups() if pair else (word,))]
    parts = [Action(found[2], int(found[1]), int(found[3])) for found in matches if found]
    if len(parts) < len(matches):
        return None
    return parts[0]._replace(partner=parts[1]) if pair else parts[0]
