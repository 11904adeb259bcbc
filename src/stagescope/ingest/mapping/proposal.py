"""Propose where the identity of actions is stated, from the names of the arguments of events."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.annotations.name_pattern import COMMON_PATTERNS, NamePattern
from stagescope.ingest.mapping.mapping_files import ready_mappings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stagescope.ingest.mapping.contents import TraceContents
    from stagescope.ingest.mapping.mapping import EventMapping

MOST_RULES = 20
IN_NAME = "{kind}"
WHOLE_NAMES = ("{kind}", "{kind}-compute", "{kind}_compute", "{kind}_microbatch", "{kind}_step")
"""Patterns to try for traces that state the identity in arguments, which the call maps."""

STEP_KEYS = ("iteration", "step", "global_step", "train_step", "iter", "train_iter", "step_id")
MICROBATCH_KEYS = (
    "microbatch", "micro_batch", "microbatch_id", "micro_batch_id", "microbatch_idx", "mb_id", "mbid", "mb",
)  # fmt: skip
KEYS_OF_FIELDS: dict[str, tuple[str, ...]] = {
    "step": STEP_KEYS,
    "microbatch": MICROBATCH_KEYS,
    "stage": ("stage", "stage_id", "stage_index", "virtual_stage", "global_stage"),
    "chunk": ("model_chunk", "chunk", "model_chunk_id", "chunk_id", "vp_stage", "vpp_rank", "virtual_rank"),
    "rank": ("rank", "global_rank", "g_rk", "rank_id"),
    "pp": ("pp_rank", "pp_rk", "pp", "pipeline_rank", "pipeline_parallel_rank"),
    "dp": ("dp_rank", "dp_rk", "dp", "data_parallel_rank"),
    "tp": ("tp_rank", "tp_rk", "tp", "tensor_parallel_rank"),
}
"""Names of arguments, the most likely first, that writers of traces use for the fields of a mapping."""


def proposed_fields(keys: Collection[str]) -> dict[str, str]:
    """Return the expressions of the fields that the arguments `keys` of events seem to state.

    >>> proposed_fields(["iteration", "mb_id", "bytes"])
    {'step': 'args.iteration', 'microbatch': 'args.mb_id'}
    """
    lowered = {key.lower(): key for key in sorted(keys, reverse=True)}
    found = {
        field: next((lowered[name] for name in names if name in lowered), None)
        for field, names in KEYS_OF_FIELDS.items()
    }
    return {field: _argument(key) for field, key in found.items() if key is not None}


def proposed_options(keys: Collection[str]) -> list[str]:
    """Return the same as options of a command: ``--map step=args.iteration``."""
    return [f"--map {field}={expression}" for field, expression in proposed_fields(keys).items()]


def _argument(key: str) -> str:
    return f"args.{key}" if key.isidentifier() else f"args['{key}']"


class Proposal(NamedTuple):
    """A proposed mapping of a trace: a shipped one that fits, or fields, and the names of slices by kind."""

    shipped: str | None
    pattern: str | None
    fields: Mapping[str, str]
    kinds: Mapping[str, str]

    @property
    def is_enough(self) -> bool:
        """Whether forwards and backwards, and their micro-batch or step, seem to be known."""
        kinds = set(self.kinds.values())
        is_named = IN_NAME in kinds or ("forward" in kinds and bool(kinds & {"backward", "backward_input"}))
        return self.shipped is not None or (is_named and bool({"step", "microbatch"} & self.stated))

    @property
    def stated(self) -> set[str]:
        """The fields that are stated, by the pattern or an argument."""
        of_pattern = {field for field in KEYS_OF_FIELDS if self.pattern and f"{{{field}}}" in self.pattern}
        return of_pattern | set(self.fields)

    @property
    def options(self) -> list[str]:
        """The options of a command that state it; none for a shipped mapping, which is recognized."""
        if self.shipped is not None or not self.is_enough:
            return []
        return [f"--map {field}={_quoted(expression)}" for field, expression in self.fields.items()]

    @property
    def toml(self) -> str:
        """The same as a mapping file, to be completed where nothing is known."""
        fields = [f"{field} = {_toml_text(expression)}" for field, expression in self.fields.items()]
        lines = ["[fields]", *(fields or ['# microbatch = "args.KEY"', '# step = "args.KEY"'])]
        for name, kind in self.kinds.items():
            lines += ["", "[[rules]]", f"name = {_toml_text(name)}"]
            lines += [] if kind == IN_NAME else [f'kind = "{kind}"']
        if not self.kinds:
            lines += [
                "",
                "# [[rules]]",
                '# name = "the name of forwards, * for any text"',
                '# kind = "forward"',
            ]
        return "\n".join(lines) + "\n"


def propose_mapping(contents: TraceContents) -> Proposal:
    """Return what seems to be the mapping of a trace."""
    names = [name for name, _ in contents.names.of.most_common()]
    shipped = next((name for name, each in ready_mappings().items() if _fits(each, contents)), None)
    for text in (*COMMON_PATTERNS, *WHOLE_NAMES):
        pattern = NamePattern(text)
        kinds = {name: action.kind for name in names if (action := pattern.action(name)) is not None}
        if "forward" in kinds.values() and {"backward", "backward_input"} & set(kinds.values()):
            keys = set().union(*(contents.keys_of_name.get(name, ()) for name in kinds))
            fields = proposed_fields([key for key in keys if contents.arguments[key].is_integer])
            stated = {field: each for field, each in fields.items() if f"{{{field}}}" not in text}
            by_name = dict(list(kinds.items())[:MOST_RULES]) if text in WHOLE_NAMES else {text: IN_NAME}
            return Proposal(shipped, text, stated, by_name)
    keys = {key for key, facts in contents.arguments.items() if facts.is_integer}
    return Proposal(shipped, None, proposed_fields(keys), {})


def _fits(mapping: EventMapping, contents: TraceContents) -> bool:
    texts = {"name": list(contents.names.of), "process_name": list(contents.process_names.values())}
    return (
        bool(mapping.signature)
        and all(key in contents.arguments for key in mapping.signature_arguments)
        and all(
            any(pattern.find(text) is not None for text in texts.get(column, ()))
            for column, pattern in mapping.signature
        )
    )


def _quoted(text: str) -> str:
    return shlex.quote(text)


def _toml_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
