"""The rank that a file name states, such as `rank3` in `trace_rank3.json`."""

from __future__ import annotations

import re

RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d{1,6})", re.IGNORECASE)
