"""A report as facts and tables to save, and back: what was computed once is loaded, everything else is computed."""

from stagescope.analysis.saved.facts import facts_json, parse_facts
from stagescope.analysis.saved.report import SavedParts, restore_report, saved_pieces, saved_tables

__all__ = ["SavedParts", "facts_json", "parse_facts", "restore_report", "saved_pieces", "saved_tables"]
