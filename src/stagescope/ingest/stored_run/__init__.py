"""Reads stored runs: directories of Parquet files with a manifest (model/stored_run.py)."""

from stagescope.ingest.stored_run.manifest import read_manifest
from stagescope.ingest.stored_run.pages import find_page
from stagescope.ingest.stored_run.reader import (
    DAMAGED,
    READER,
    SOURCE_CHANGED,
    count_stored_actions,
    fetch_parts,
    is_as_stored,
    known_steps,
    open_lazily,
    read_or_note,
    read_part,
    read_small_tables,
    read_stored_run,
    stored_state,
)
from stagescope.ingest.stored_run.results import is_intact, load_result, read_results

__all__ = [
    "DAMAGED",
    "READER",
    "SOURCE_CHANGED",
    "count_stored_actions",
    "fetch_parts",
    "find_page",
    "is_as_stored",
    "is_intact",
    "known_steps",
    "load_result",
    "open_lazily",
    "read_manifest",
    "read_or_note",
    "read_part",
    "read_results",
    "read_small_tables",
    "read_stored_run",
    "stored_state",
]
