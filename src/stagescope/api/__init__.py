"""The Python API: read, analyze, compare, what_if, simulate, export and open.

Every command is a thin layer over these functions. `stagescope` exports the names that most users need; the
others are for programs that need what a single command does.
"""

from stagescope.api.analyses import (
    EqualStages,
    FreeTransfers,
    OtherSchedule,
    Slower,
    analyze,
    compare,
    comparison_json,
    report_json,
    sorted_diagnostics,
    unaligned_ranks,
    what_if,
    what_if_json,
)
from stagescope.api.ascend_chart import export_pp_chart, pp_chart_folder
from stagescope.api.cached_entries import CacheEntry, cache_entries, cache_place, clear_cache
from stagescope.api.formats import ALIASES, READERS, WRITERS, writer_for
from stagescope.api.inspection import Inspection, inspect, inspection_json
from stagescope.api.notebook import attach
from stagescope.api.queries import QUERY_FORMATS, sql, write_query
from stagescope.api.reading import (
    RunFacts,
    align_timeline,
    clock_json,
    clock_line,
    clock_report,
    read,
    read_paddle_logs,
)
from stagescope.api.receiving import TraceReceiver
from stagescope.api.run_cache import Shown, cached_input
from stagescope.api.run_views import files_state, view_run
from stagescope.api.running import (
    Answers,
    HangReport,
    control,
    find_hang,
    hang_json,
    hang_rows,
    hang_sentences,
)
from stagescope.api.saved_reports import is_quick_to_analyze, load_report, report_of_stored_run, save_report
from stagescope.api.serving import Viewer, open, prepare_viewer  # noqa: A004 - the public verb
from stagescope.api.simulation import SimulatedStep, simulate
from stagescope.api.storing import store
from stagescope.api.watching import Update, Watcher
from stagescope.api.writing import export, export_comparison, export_paddle_profile, write
from stagescope.exporters.stored_run import Stored

__all__ = [
    "ALIASES",
    "QUERY_FORMATS",
    "READERS",
    "WRITERS",
    "Answers",
    "CacheEntry",
    "EqualStages",
    "FreeTransfers",
    "HangReport",
    "Inspection",
    "OtherSchedule",
    "RunFacts",
    "Shown",
    "SimulatedStep",
    "Slower",
    "Stored",
    "TraceReceiver",
    "Update",
    "Viewer",
    "Watcher",
    "align_timeline",
    "analyze",
    "cache_entries",
    "cache_place",
    "cached_input",
    "clear_cache",
    "clock_json",
    "clock_line",
    "clock_report",
    "compare",
    "comparison_json",
    "control",
    "export",
    "export_comparison",
    "export_paddle_profile",
    "export_pp_chart",
    "files_state",
    "find_hang",
    "hang_json",
    "hang_rows",
    "hang_sentences",
    "inspect",
    "inspection_json",
    "is_quick_to_analyze",
    "load_report",
    "open",
    "pp_chart_folder",
    "prepare_viewer",
    "read",
    "read_paddle_logs",
    "report_json",
    "report_of_stored_run",
    "save_report",
    "simulate",
    "sorted_diagnostics",
    "sql",
    "store",
    "unaligned_ranks",
    "view_run",
    "what_if",
    "what_if_json",
    "write",
    "write_query",
    "writer_for",
]

attach()
