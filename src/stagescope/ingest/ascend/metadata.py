"""Declarations in the profiles: schedule, parallel sizes, process groups, host and device.

META_DATA holds the data that the training script passed to the profiler, as JSON texts: `pp_info` and
`distributed_args` as in the guide of pp_chart (msprof-analyze 26.2) and in MindSpeed-LLM, training/training.py;
`parallel_group_info` is torch_npu's list of process groups, by the names that COMMUNICATION_OP uses.
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
from stagescope.vocabulary.limits import limit
from stagescope.vocabulary.number_ranges import ranks_text
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

DIGITS = re.compile(r"[0-9]{1,9}")
PIPELINE_GROUPS = ("pp", "pipeline")
"""Names of the group along the pipeline in parallel_group_info (megatron/core/parallel_state.py: pp)."""
MOST_MEMBERS = 2**12
"""Ranks of one pipeline; the largest known has 64 stages. All of them become ranks of the run."""


class Group(NamedTuple):
    """A process group: its purpose, and its ranks in the order of their local numbers."""

    purpose: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """Declarations of one profile about itself and the run."""

    rank: int
    source: str
    device: str | None = None
    host: str | None = None
    machine: str | None = None
    """The id of the host, or its name if there is no id: identifies the machine."""

    pipeline: PipelineInfo | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    order: str | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)

    @property
    def clock(self) -> str | None:
        """Clock domain: the wall clock of its machine, to which the profiler converts all times."""
        return f"{self.machine}/wall" if self.machine else None


class Declared(NamedTuple):
    """Combined declarations of all profiles of a run."""

    pipeline: PipelineInfo
    layout: Layout
    world_size: int | None


def read_facts(database: Database, rank: int) -> Facts:
    """Return the declarations of a profile; missing or invalid ones are None."""
    texts = database.frame("META_DATA", ("name", "value"), {"name": pl.String, "value": pl.String})
    metadata = {name: read_json_object(value) for name, value in texts.drop_nulls("name").iter_rows()}
    sizes = metadata.get("distributed_args", {})
    named = database.frame("HOST_INFO", ("hostUid", "hostName"), {"uid": pl.String, "host": pl.String})
    hosts = [row for row in named.iter_rows() if any(row)]
    uid, host = hosts[0] if hosts else (None, _worker(database.path))
    mapped = database.frame("RANK_DEVICE_MAP", ("rankId", "deviceId"), {"rank": pl.Int64, "device": pl.Int64})
    # -1 is the recorded rank of a profile without a rank.
    devices = mapped.filter(pl.col("rank").is_in([rank, -1]))["device"].drop_nulls().unique()
    return Facts(
        rank,
        str(database.path),
        device=f"NPU:{devices[0]}" if len(devices) == 1 else None,
        host=host or uid or None,
        machine=uid or host or None,
        pipeline=_pipeline(metadata["pp_info"]) if "pp_info" in metadata else None,
        sizes={name: size for name, keys in SIZE_KEYS.items() if (size := _number(sizes, keys))},
        world_size=_number(sizes, ("world_size",)),
        order=_order(sizes),
        groups=_groups(metadata.get("parallel_group_info", {}), database),
    )


def _worker(path: Path) -> str | None:
    """Return the host name in the name of a profile's folder: {host}_{pid}_{time}_ascend_pt."""
    found = re.fullmatch(r"(.+)_\d+_\d{17}_ascend_(?:pt|ms)", path.parent.parent.name)
    return found[1] if found else None


def read_json_object(value: str | None) -> dict[str, Any]:
    """Return the JSON object in a text; torch_npu's add_metadata nests JSON in a JSON string."""
    found: object = value
    # Once for JSON, twice for JSON in a JSON string.
    for _ in range(2):
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError):
                return {}
    return found if isinstance(found, dict) else {}


def _number(facts: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    values = (facts[key] for key in keys if key in facts)
    # No size of a run is larger than the largest number of ranks; longer texts are not even converted.
    numbers = (int(value) for value in values if DIGITS.fullmatch(str(value)))
    return next((number for number in numbers if 0 < number <= limit("ranks")), None)


def _order(sizes: Mapping[str, Any]) -> str | None:
    declared = next((sizes[key] for key in ORDER_KEYS if isinstance(sizes.get(key), str)), None)
    return declared or (PP_BEFORE_DP if sizes.get("use_tp_pp_dp_mapping") is True else None)


def _pipeline(pp_info: Mapping[str, Any]) -> PipelineInfo:
    schedule = pp_info.get("pp_type")
    return PipelineInfo(
        str(schedule).lower() if schedule is not None else None,
        _number(pp_info, ("microbatch_num", "num_microbatches")),
    )


def _groups(listed: Mapping[str, Any], database: Database) -> dict[str, Group]:
    found = {}
    for name, group in listed.items():
        ranks = group.get("global_ranks") if isinstance(group, dict) else None
        if (
            isinstance(ranks, list)
            and len(ranks) > MOST_MEMBERS
            and group.get("group_name") in PIPELINE_GROUPS
        ):
            text = (
                f"has a pipeline group of {len(ranks):,} ranks, more than {MOST_MEMBERS:,}, which was ignored"
            )
            database.note("META_DATA", text)
        elif isinstance(ranks, list) and all(
            isinstance(rank, int) and 0 <= rank < limit("ranks") for rank in ranks
        ):
            found[name] = Group(str(group.get("group_name", "")), tuple(ranks))
    return found


def combine_facts(facts: Sequence[Facts]) -> tuple[Declared, list[Diagnostic]]:
    """Return the declarations of all profiles combined; where they conflict, those of most profiles, with a warning.

    A declaration that not every profile repeats is taken from those that have it, so an unreadable first rank hides
    nothing.
    """
    notes: list[Diagnostic] = []
    pipeline = _majority({each.rank: each.pipeline for each in facts}, "pp_info", notes) or PipelineInfo()
    named = {each.rank: tuple(sorted(each.sizes.items())) or None for each in facts}
    sizes = dict(_majority(named, "parallel sizes", notes) or ())
    world_size = _majority({each.rank: each.world_size for each in facts}, "world_size", notes)
    order = _majority({each.rank: each.order for each in facts}, "order of ranks", notes)
    sizes, world_size, wrong = _consistent_sizes(sizes, world_size, max(each.rank for each in facts) + 1)
    notes += wrong
    layout = Layout(
        sizes.get("pp"), sizes.get("dp"), sizes.get("tp"), sizes.get("cp"), order or DEFAULT_ORDER
    )
    return Declared(pipeline, layout, world_size), notes


def _majority(declared: Mapping[int, Any], what: str, notes: list[Diagnostic]) -> Any:
    """Return the value that most ranks declare, ignoring ranks that declare none."""
    counts = Counter(value for value in declared.values() if value is not None)
    if not counts:
        return None
    value = counts.most_common(1)[0][0]
    others = [rank for rank, other in declared.items() if other is not None and other != value]
    if others:
        text = f"the {what} declared by {ranks_text(others)} differs from that of most ranks and is ignored"
        notes.append(
            Diagnostic("warning", text, rank=others[0], count=len(others), code="metadata.contradictory")
        )
    return value


def _consistent_sizes(
    sizes: dict[str, int], world_size: int | None, at_least: int
) -> tuple[dict[str, int], int | None, list[Diagnostic]]:
    """Return the sizes and the number of ranks that they make, or no sizes where these are impossible.

    data_parallel_size includes the context-parallel ranks in some frameworks and not in others (in Megatron not).
    """
    if "pp" not in sizes:
        return sizes, world_size, []
    rest = sizes["pp"] * sizes.get("tp", 1) * sizes.get("cp", 1)
    product = rest * sizes["dp"] if "dp" in sizes else None
    expected = world_size or product
    # Too large by exactly the factor cp: this framework counts context-parallel ranks in dp.
    if product is not None and product != expected and product == (expected or 0) * sizes.get("cp", 1):
        return {**sizes, "dp": sizes["dp"] // sizes.get("cp", 1)}, expected, []
    if expected is None or (product in (None, expected) and expected % rest == 0 and expected >= at_least):
        return sizes, expected, []
    shown = " x ".join(f"{name} {size}" for name, size in sizes.items())
    text = f"the declared sizes {shown} do not make {max(expected, at_least)} ranks; they are ignored"
    return {}, world_size, [Diagnostic("warning", text, code="layout.invalid")]


def place_ranks(
    facts: Sequence[Facts], declared: Declared, given: Layout
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return rank, pp, dp, tp, cp of every rank of the run, null where unknown, and diagnostics.

    A layout in the options takes precedence over the declared one. The recorded groups along the pipeline determine the
    pipeline rank with certainty; the order of the ranks is the first one consistent with them. Raises InputError and
    UsageError where a layout in the options is impossible.
    """
    ranks = [each.rank for each in facts]
    if given.is_given:
        world_size = given.rank_count or declared.world_size
        return coordinates(list(range(world_size or max(ranks) + 1)), given, world_size), []
    places = {rank: place for each in facts for rank, place in _pipeline_places(each)}
    layout = declared.layout
    if layout.pp is not None:
        return _matching_order(ranks, places, layout, declared.world_size)
    return _by_groups(ranks, places), []


def _pipeline_places(facts: Facts) -> Iterable[tuple[int, int]]:
    """Yield the ranks of a profile's own pipeline group with their positions in it."""
    for group in facts.groups.values():
        if group.purpose in PIPELINE_GROUPS and facts.rank in group.ranks:
            yield from ((rank, place) for place, rank in enumerate(group.ranks))


def _matching_order(
    ranks: Sequence[int], places: Mapping[int, int], layout: Layout, world_size: int | None
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the coordinates in the first order that puts every rank where its recorded group has it."""
    every = list(range(world_size or max(*ranks, *places, 0) + 1))
    for order in dict.fromkeys((layout.order, DEFAULT_ORDER, PP_BEFORE_DP)):
        try:
            found = coordinates(every, Layout(layout.pp, layout.dp, layout.tp, layout.cp, order), world_size)
        except StagescopeError as error:
            return _by_groups(ranks, places), [
                Diagnostic("warning", f"the declared sizes cannot be used: {error}", code="layout.invalid")
            ]
        pp = dict(zip(found["rank"], found["pp"], strict=True))
        # Recorded groups are facts about the run, the declared order is only text in the training script.
        if all(pp.get(rank) == place for rank, place in places.items()):
            return found, []
    text = (
        "the recorded pipeline groups match no known order of ranks; pipeline ranks are taken from the groups"
    )
    unordered = Diagnostic("warning", text, count=len(places), code="layout.unknown_order")
    return _by_groups(every, places), [unordered]


COORDINATES = dict.fromkeys(("rank", "pp", "dp", "tp", "cp"), pl.Int32)


def _by_groups(ranks: Sequence[int], places: Mapping[int, int]) -> pl.DataFrame:
    """Return the pipeline ranks recorded in groups; replicas of any kind are numbered as dp."""
    rows = []
    replicas: Counter[int] = Counter()
    for rank in sorted({*ranks, *places}):
        place = places.get(rank)
        rows.append((rank, place, None if place is None else replicas[place], None, None))
        replicas.update([] if place is None else [place])
    return pl.DataFrame(rows, COORDINATES, orient="row")
