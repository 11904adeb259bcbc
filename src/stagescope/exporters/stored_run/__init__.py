"""Store a Timeline as a directory of Parquet files (model/stored_run.py)."""

from stagescope.exporters.stored_run.locking import locked
from stagescope.exporters.stored_run.pages import write_page
from stagescope.exporters.stored_run.results import write_results, write_table
from stagescope.exporters.stored_run.writer import Store, Stored, WriteOptions, storing, write_stored_run

__all__ = [
    "Store",
    "Stored",
    "WriteOptions",
    "locked",
    "storing",
    "write_page",
    "write_results",
    "write_stored_run",
    "write_table",
]
