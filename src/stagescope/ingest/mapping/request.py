"""What a call states about the slices of traces of other tools, as validated objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.mapping.mapping import MappingRequest, parse_fields, parse_texts
from stagescope.ingest.mapping.mapping_files import load_mapping

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def mapping_request(
    fields: Mapping[str, str | int] | None,
    mapping: str | os.PathLike[str] | None,
    only: Mapping[str, str | int] | None,
) -> MappingRequest | None:
    """Return the request of a call: `map`, `mapping` and `only` of `stagescope.read`; None if it has none of them.

    Raises UsageError for a malformed one, InputError and CommandError for a mapping that cannot be read.
    """
    if not fields and mapping is None and not only:
        return None
    return MappingRequest(
        None if mapping is None else load_mapping(mapping),
        parse_fields(fields or {}, "--map"),
        parse_texts(only or {}, "--only"),
    )
