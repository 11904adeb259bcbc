"""The Python API: read, analyze, compare, what_if, simulate, export and open.

Every command is a thin layer over these functions. `stagescope` exports the names that most users need; the
others are for programs that need what a single command does.

Names are imported on first use: a worker process, and a command, need a few of these modules, and all of them take half
of the time to start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope.api.analyses import (
        EqualStages,
        FreeTransfers,
        OtherSchedule,
        Slower,
        analyze,
        compare,
        compare_gathered,
        comparison_json,
        find_errors,
        gather_timeline,
        report_json,
        sorted_diagnostics,
        unaligned_ranks,
        what_if,
        what_if_json,
        what_if_of_sample,
    )
    from stagescope.api.ascend_chart import export_pp_chart, pp_chart_folder
    from stagescope.api.cached_entries import CacheEntry, cache_entries, cache_place, clear_cache
    from stagescope.api.compared_runs import gather_stored_run
    from stagescope.api.formats import ALIASES, READERS, WRITERS, writer_for
    from stagescope.api.inspection import Inspection, inspect, inspection_json
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
    from stagescope.api.run_views import files_state, save_page, view_run
    from stagescope.api.running import (
        Answers,
        HangReport,
        control,
        find_hang,
        hang_json,
        hang_rows,
        hang_sentences,
    )
    from stagescope.api.sampled_runs import SampledRun, sample_stored_run
    from stagescope.api.saved_reports import (
        is_quick_to_analyze,
        load_report,
        metrics_of_stored_run,
        report_of_stored_run,
        save_report,
    )
    from stagescope.api.serving import Viewer, open, prepare_viewer  # noqa: A004 - the public verb
    from stagescope.api.shown_steps import ShownStep, show_stored_run
    from stagescope.api.simulation import SimulatedStep, simulate
    from stagescope.api.storing import store
    from stagescope.api.watching import Update, Watcher
    from stagescope.api.writing import export, export_comparison, export_paddle_profile, write
    from stagescope.exporters.stored_run import Stored

_MODULES = {
    "stagescope.api.analyses": (
        "EqualStages", "FreeTransfers", "OtherSchedule", "Slower", "analyze", "compare", "compare_gathered",
        "comparison_json", "find_errors", "gather_timeline", "report_json", "sorted_diagnostics", "unaligned_ranks",
        "what_if", "what_if_json", "what_if_of_sample",
    ),
    "stagescope.api.ascend_chart": ("export_pp_chart", "pp_chart_folder"),
    "stagescope.api.cached_entries": ("CacheEntry", "cache_entries", "cache_place", "clear_cache"),
    "stagescope.api.compared_runs": ("gather_stored_run",),
    "stagescope.api.formats": ("ALIASES", "READERS", "WRITERS", "writer_for"),
    "stagescope.api.inspection": ("Inspection", "inspect", "inspection_json"),
    "stagescope.api.queries": ("QUERY_FORMATS", "sql", "write_query"),
    "stagescope.api.reading": (
        "RunFacts", "align_timeline", "clock_json", "clock_line", "clock_report", "read", "read_paddle_logs",
    ),
    "stagescope.api.receiving": ("TraceReceiver",),
    "stagescope.api.run_cache": ("Shown", "cached_input"),
    "stagescope.api.run_views": ("files_state", "save_page", "view_run"),
    "stagescope.api.running": (
        "Answers", "HangReport", "control", "find_hang", "hang_json", "hang_rows", "hang_sentences",
    ),
    "stagescope.api.sampled_runs": ("SampledRun", "sample_stored_run"),
    "stagescope.api.saved_reports": (
        "is_quick_to_analyze", "load_report", "metrics_of_stored_run", "report_of_stored_run", "save_report",
    ),
    "stagescope.api.serving": ("Viewer", "open", "prepare_viewer"),
    "stagescope.api.shown_steps": ("ShownStep", "show_stored_run"),
    "stagescope.api.simulation": ("SimulatedStep", "simulate"),
    "stagescope.api.storing": ("store",),
    "stagescope.api.watching": ("Update", "Watcher"),
    "stagescope.api.writing": ("export", "export_comparison", "export_paddle_profile", "write"),
    "stagescope.exporters.stored_run": ("Stored",),
}  # fmt: skip
"""The names by the module that defines them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

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
    "SampledRun",
    "Shown",
    "ShownStep",
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
    "compare_gathered",
    "comparison_json",
    "control",
    "export",
    "export_comparison",
    "export_paddle_profile",
    "export_pp_chart",
    "files_state",
    "find_errors",
    "find_hang",
    "gather_stored_run",
    "gather_timeline",
    "hang_json",
    "hang_rows",
    "hang_sentences",
    "inspect",
    "inspection_json",
    "is_quick_to_analyze",
    "load_report",
    "metrics_of_stored_run",
    "open",
    "pp_chart_folder",
    "prepare_viewer",
    "read",
    "read_paddle_logs",
    "report_json",
    "report_of_stored_run",
    "sample_stored_run",
    "save_page",
    "save_report",
    "show_stored_run",
    "simulate",
    "sorted_diagnostics",
    "sql",
    "store",
    "unaligned_ranks",
    "view_run",
    "what_if",
    "what_if_json",
    "what_if_of_sample",
    "write",
    "write_query",
    "writer_for",
]


def __getattr__(name: str) -> object:
    """Return a name from the module that defines it, and set the notebook representations of results."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.notebook")
    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names, imported already or not."""
    return sorted({*globals(), *__all__})
