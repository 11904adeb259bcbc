"""What profiles declare of the run: its schedule, its parallel sizes and groups, and who they are.

META_DATA holds what the training script gave the profiler, as JSON texts: `pp_info` and `distributed_args` as in the
guide of pp_chart (msprof-analyze 26.2) and in MindSpeed-LLM, training/training.py; `parallel_group_info` is torch_npu's
list of process groups, by the name that COMMUNICATION_OP gives them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.layout import Layout, coordinates
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import StagescopeError
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.parallel import DEFAULT_ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stagescope.ingest.database import Database

SIZE_KEYS = {
    "tp": ("tensor_model_parallel_size", "tensor_parallel_size", "tp_size", "tp"),
    "pp": ("pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size", "pp"),
    "cp": ("context_parallel_size", "context_model_parallel_size", "cp_size", "cp"),
    "dp": ("data_parallel_size", "data_model_parallel_size", "dp_size", "dp"),
}
ORDER_KEYS = ("order", "rank_order")
PP_BEFORE_DP = "tp-cp-ep-pp-dp"
"""Megatron's order under --use-tp-pp-dp-mapping."""

PIPELINE_GROUPS = ("pp", "pipeline")
"""What parallel_group_info calls the group along the pipeline (megatron/core/parallel_state.py: pp)."""


class Group(NamedTuple):
    """A process group: what it is for, and its ranks in the order of their local numbers."""

    purpose: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """What one profile says of itself and of the run."""

    rank: int
    source: str
    device: str | None = None
    host: str | None = None
    machine: str | None = None
    """What tells its machine from others: the id of the host, else its name."""

    pipeline: PipelineInfo | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    order: str | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)

    @property
    def clock(self) -> str | None:
        """Clock domain: the wall clock of its machine, which the profiler converts all its times to."""
        return f"{self.machine}/wall" if self.machine else None


class Declared(NamedTuple):
    """What the profiles of a run say together."""

    pipeline: PipelineInfo
    layout: Layout
    world_size: int | None


def read_facts(database: Database, rank: int) -> Facts:
    """Return what a profile declares; what it does not say, or says in a way that is none, stays open."""
    said = {str(name): _object(value) for name, value in _rows(database, "META_DATA", ("name", "value"))}
    sizes = said.get("distributed_args", {})
    hosts = [row for row in _rows(database, "HOST_INFO", ("hostUid", "hostName")) if any(row)]
    uid, host = hosts[0] if hosts else (None, _worker(database.path))
    devices = {
        one for own, one in _rows(database, "RANK_DEVICE_MAP", ("rankId", "deviceId")) if own in (rank, -1)
    }
    return Facts(
        rank,
        str(database.path),
        device=f"NPU:{devices.pop()}" if len(devices) == 1 else None,
        host=str(host or uid) if host or uid else None,
        machine=str(uid or host) if host or uid else None,
        pipeline=_pipeline(said["pp_info"]) if "pp_info" in said else None,
        sizes={name: size for name, keys in SIZE_KEYS.items() if (size := _number(sizes, keys))},
        world_size=_number(sizes, ("world_size",)),
        order=_order(sizes),
        groups=_groups(said.get("parallel_group_info", {})),
    )


def _worker(path: Path) -> str | None:
    """Return the host as the name of a profile's folder has it: {host}_{pid}_{time}_ascend_pt."""
    found = re.fullmatch(r"(.+)_\d+_\d{17}_ascend_(?:pt|ms)", path.parent.parent.name)
    return found[1] if found else None


def _rows(database: Database, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    if not database.has(table):
        return []
    query = f"SELECT t.rowid, {database.columns(table, 't', names)} FROM {table} t"  # noqa: S608 - declared names
    return database.rows(table, query)


def _object(value: object) -> dict[str, Any]:
    """Return the JSON object that a text holds; torch_npu's add_metadata leaves JSON inside a JSON string."""
    found: object = value
    for _ in range(2):
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except ValueError:
                return {}
    return found if isinstance(found, dict) else {}


def _number(facts: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    values = (facts[key] for key in keys if key in facts)
    numbers = (int(value) for value in values if str(value).isdecimal())
    return next((number for number in numbers if number > 0), None)


def _order(sizes: Mapping[str, Any]) -> str | None:
    stated = next((sizes[key] for key in ORDER_KEYS if isinstance(sizes.get(key), str)), None)
    return stated or (PP_BEFORE_DP if sizes.get("use_tp_pp_dp_mapping") is True else None)


def _pipeline(said: Mapping[str, Any]) -> PipelineInfo:
    schedule = said.get("pp_type")
    return PipelineInfo(
        str(schedule).lower() if schedule is not None else None,
        _number(said, ("microbatch_num", "num_microbatches")),
    )


def _groups(said: Mapping[str, Any]) -> dict[str, Group]:
    found = {}
    for name, group in said.items():
        ranks = group.get("global_ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found[name] = Group(str(group.get("group_name", "")), tuple(ranks))
    return found


def agree(facts: Sequence[Facts]) -> tuple[Declared, list[Diagnostic]]:
    """Return what the profiles say together; where they contradict one another, what most say, with a warning.

    What no single profile has to repeat is taken from those that have it: an unreadable first rank hides nothing.
    """
    notes: list[Diagnostic] = []
    pipeline = _most({each.rank: each.pipeline for each in facts}, "pp_info", notes) or PipelineInfo()
    named = {each.rank: tuple(sorted(each.sizes.items())) or None for each in facts}
    sizes = dict(_most(named, "parallel sizes", notes) or ())
    world_size = _most({each.rank: each.world_size for each in facts}, "world_size", notes)
    order = _most({each.rank: each.order for each in facts}, "order of ranks", notes)
    sizes, world_size, wrong = _fitting(sizes, world_size, max(each.rank for each in facts) + 1)
    notes += wrong
    layout = Layout(
        sizes.get("pp"), sizes.get("dp"), sizes.get("tp"), sizes.get("cp"), order or DEFAULT_ORDER
    )
    return Declared(pipeline, layout, world_size), notes


def _most(said: Mapping[int, Any], what: str, notes: list[Diagnostic]) -> Any:
    """Return what most ranks say, those not counted that say nothing."""
    counts = Counter(value for value in said.values() if value is not None)
    if not counts:
        return None
    value = counts.most_common(1)[0][0]
    others = [rank for rank, other in said.items() if other is not None and other != value]
    if others:
        text = f"rank {compact_ranges(others)} declares another {what} than the others, which are believed"
        notes.append(Diagnostic("warning", text, rank=others[0], count=len(others)))
    return value


def _fitting(
    sizes: dict[str, int], world_size: int | None, at_least: int
) -> tuple[dict[str, int], int | None, list[Diagnostic]]:
    """Return the sizes and the ranks that they make, without sizes where these cannot be.

    data_parallel_size counts the context-parallel ranks in some frameworks and not in others (in Megatron not).
    """
    if "pp" not in sizes:
        return sizes, world_size, []
    rest = sizes["pp"] * sizes.get("tp", 1) * sizes.get("cp", 1)
    product = rest * sizes["dp"] if "dp" in sizes else None
    expected = world_size or product
    if product is not None and product != expected and product == (expected or 0) * sizes.get("cp", 1):
        return {**sizes, "dp": sizes["dp"] // sizes.get("cp", 1)}, expected, []
    if expected is None or (product in (None, expected) and expected % rest == 0 and expected >= at_least):
        return sizes, expected, []
    shown = " x ".join(f"{name} {size}" for name, size in sizes.items())
    text = f"the declared sizes {shown} do not make {max(expected, at_least)} ranks; they are not used"
    return {}, world_size, [Diagnostic("warning", text)]


def place_ranks(
    facts: Sequence[Facts], declared: Declared, given: Layout
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return rank, pp, dp, tp, cp of every rank of the run, null where nothing tells, and what had to be said.

    A layout given by hand goes before the declared one. The recorded groups along the pipeline say the place in it
    for certain; the order of the ranks is one that agrees with them. Raises InputError and UsageError where a layout
    given by hand cannot be.
    """
    ranks = [each.rank for each in facts]
    if given.is_given:
        world_size = given.rank_count or declared.world_size
        return coordinates(list(range(world_size or max(ranks) + 1)), given, world_size), []
    places = {rank: place for each in facts for rank, place in _pipeline_places(each)}
    layout = declared.layout
    if layout.pp is not None:
        return _agreeing(ranks, places, layout, declared.world_size)
    return _by_groups(ranks, places), []


def _pipeline_places(facts: Facts) -> Iterable[tuple[int, int]]:
    """Yield the ranks of a profile's own pipeline group with their places in it."""
    for group in facts.groups.values():
        if group.purpose in PIPELINE_GROUPS and facts.rank in group.ranks:
            yield from ((rank, place) for place, rank in enumerate(group.ranks))


def _agreeing(
    ranks: Sequence[int], places: Mapping[int, int], layout: Layout, world_size: int | None
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the coordinates in the first order that puts every rank where its group has it."""
    every = list(range(world_size or max(*ranks, *places, 0) + 1))
    for order in dict.fromkeys((layout.order, DEFAULT_ORDER, PP_BEFORE_DP)):
        try:
            found = coordinates(every, Layout(layout.pp, layout.dp, layout.tp, layout.cp, order), world_size)
        except StagescopeError as error:
            return _by_groups(ranks, places), [
                Diagnostic("warning", f"the declared sizes cannot be used: {error}")
            ]
        pp = dict(zip(found["rank"], found["pp"], strict=True))
        if all(pp.get(rank) == place for rank, place in places.items()):
            return found, []
    text = "the recorded pipeline groups fit no order of ranks that is known; places in the pipeline are the groups'"
    return _by_groups(every, places), [Diagnostic("warning", text, count=len(places))]


COORDINATES = dict.fromkeys(("rank", "pp", "dp", "tp", "cp"), pl.Int32)


def _by_groups(ranks: Sequence[int], places: Mapping[int, int]) -> pl.DataFrame:
    """Return the places along the pipeline that groups tell; replicas are numbered as dp, whatever sets them apart."""
    rows = []
    replicas: Counter[int] = Counter()
    for rank in sorted({*ranks, *places}):
        place = places.get(rank)
        rows.append((rank, place, None if place is None else replicas[place], None, None))
        replicas.update([] if place is None else [place])
    return pl.DataFrame(rows, COORDINATES, orient="row")
