"""From files to a Timeline: find the inputs of a call, read each format with its reader, merge the results.

`find_inputs` lists the files by format, `read_inputs` reads them. Formats are registered in ingest/registry.py.
"""

from stagescope.ingest.discover import Inputs, find_inputs
from stagescope.ingest.merge import merge_timelines, read_inputs
from stagescope.ingest.reader import Reader

__all__ = ["Inputs", "Reader", "find_inputs", "merge_timelines", "read_inputs"]
