"""From files to a Timeline: find the inputs of a call, read each format with its reader, merge the results.

`find_inputs` returns the files by reader, `read_inputs` reads them. The built-in readers are listed in
api/formats.py; ingest/registry.py adds those of other packages.
"""

from stagescope.ingest.discover import Inputs, find_inputs
from stagescope.ingest.merge import merge_timelines, read_inputs
from stagescope.ingest.reader import Reader

__all__ = ["Inputs", "Reader", "find_inputs", "merge_timelines", "read_inputs"]
