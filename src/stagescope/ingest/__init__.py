"""File to Timeline: find the inputs of a call, let the reader of each format read them, merge the results.

`find_inputs` says what is there, `read_inputs` reads it. Formats are registered in ingest/registry.py.
"""

from stagescope.ingest.discover import Inputs, find_inputs
from stagescope.ingest.merge import merge_timelines, read_inputs
from stagescope.ingest.reader import Reader

__all__ = ["Inputs", "Reader", "find_inputs", "merge_timelines", "read_inputs"]
