"""Store a Timeline as a directory of Parquet files (model/stored_run.py)."""

from stagescope.exporters.stored_run.locking import locked
from stagescope.exporters.stored_run.writer import Stored, WriteOptions, write_stored_run

__all__ = ["Stored", "WriteOptions", "locked", "write_stored_run"]
