"""Parse changes of costs on the command line: ``stage=3:10%`` or ``rank=2,kind=backward:5%``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from stagescope.api import Slower

PERCENT = re.compile(r"(?:(?P<where>[^:]+):)?\s*(?P<percent>\d+(?:\.\d+)?)\s*%")
WHERE = re.compile(r"\s*(?:(?P<number>stage|rank)\s*=\s*(?P<value>\d+)|kind\s*=\s*(?P<kind>\w+))\s*")
ALL = 100.0


def parse_change(option: str, text: str) -> Slower:
    """Return the change that the value of ``--faster`` or ``--slower`` describes.

    Raises UsageError for anything but a percentage preceded by stage, rank or kind, each at most once, and for 100 %
    faster or more.
    """
    from stagescope.api import Slower

    found = PERCENT.fullmatch(text.strip())
    if found is None:
        raise UsageError.change_malformed(option, text)
    percent = float(found["percent"])
    faster = option == "--faster"
    if faster and percent >= ALL:
        raise UsageError.change_malformed(option, text)
    where: dict[str, int | str] = {}
    for word in (found["where"] or "").split(",") if found["where"] else ():
        part = WHERE.fullmatch(word)
        name = part and (part["number"] or "kind")
        if (
            part is None
            or name is None
            or name in where
            or (part["kind"] or ACTION_KINDS[0]) not in ACTION_KINDS
        ):
            raise UsageError.change_malformed(option, text)
        where[name] = part["kind"] or int(part["value"])
    factor = 1 - percent / ALL if faster else 1 + percent / ALL
    return Slower(factor=factor, **where)  # type: ignore[arg-type]  # numbers for stage and rank, a word for kind
