"""Reads stored runs: directories of Parquet files with a manifest (model/stored_run.py)."""

from stagescope.ingest.stored_run.manifest import read_manifest
from stagescope.ingest.stored_run.reader import READER, read_stored_run

__all__ = ["READER", "read_manifest", "read_stored_run"]
