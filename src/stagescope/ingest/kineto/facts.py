"""Read the identity of a trace from its header: rank, world size, host, device, process groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.ingest.trace_json.trace_events import base_time_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class RankFacts(NamedTuple):
    """The identity of a trace, as far as its header states it; `groups` has the ranks of each process group."""

    rank: int | None
    world_size: int | None
    host: str | None
    device: str | None
    has_epoch: bool
    groups: tuple[tuple[int, ...], ...]


def rank_facts(path: Path, facts: dict[str, Any]) -> RankFacts:
    """Return the identity from the header fields of a trace; without a rank there, the one in the file name."""
    info = facts.get("distributedInfo")
    distributed = info if isinstance(info, dict) else {}
    in_name = RANK_IN_NAME.search(path.name)
    rank = _whole(distributed.get("rank"))
    if rank is None and in_name:
        rank = int(in_name[1])
    groups = distributed.get("pg_config")
    host = facts.get("host_name")
    return RankFacts(
        rank,
        _whole(distributed.get("world_size")),
        host if isinstance(host, str) else None,
        _device(facts.get("deviceProperties")),
        base_time_ns(facts) is not None,
        tuple(_members(one) for one in groups) if isinstance(groups, list) else (),
    )


def rank_count(paths: Sequence[Path]) -> int | None:
    """Return the number of files if their names number all of them from 0, as those of a whole run; else None."""
    numbers = {int(found[1]) for path in paths if (found := RANK_IN_NAME.search(path.name))}
    return len(paths) if numbers == set(range(len(paths))) else None


def _members(group: Any) -> tuple[int, ...]:
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if not isinstance(ranks, list):
        return ()
    return tuple(rank for rank in ranks if _whole(rank) is not None)


def _device(properties: Any) -> str | None:
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        name = properties[0].get("name")
        return name if isinstance(name, str) else None
    return None


def _whole(value: Any) -> int | None:
    # `type(...) is`, because a JSON true would pass isinstance(value, int).
    return value if type(value) is int and 0 <= value < 2**31 else None
