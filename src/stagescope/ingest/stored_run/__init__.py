"""Reads stored runs: directories of Parquet files with a manifest (model/stored_run.py)."""

from stagescope.ingest.stored_run.manifest import read_manifest
from stagescope.ingest.stored_run.reader import (
    READER,
    fetch_parts,
    known_steps,
    open_lazily,
    read_or_note,
    read_part,
    read_small_tables,
    read_stored_run,
)
from stagescope.ingest.stored_run.results import is_intact, load_result, read_results

__all__ = [
    "READER",
    "fetch_parts",
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
]
