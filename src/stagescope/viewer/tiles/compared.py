"""The run that another one is compared with on the local server: its levels, and the sentences of the comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.reports.translations import with_translations
from stagescope.viewer.analysis_data import comparison_words
from stagescope.viewer.tiles.run import JSON_TYPE, Section, json_bytes, open_run
from stagescope.viewer.tiles.sources import save_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.model import Timeline
    from stagescope.viewer.tiles.build import Progress
    from stagescope.viewer.tiles.run import RunView

COMPARISON_FILE = "comparison.json"
COMPARISON, TRANSLATIONS = "comparison", "translations"
"""Sections of the run that is compared."""


def save_comparison(
    comparison: Comparison, before: Timeline, folder: Path, on_done: Progress | None = None
) -> None:
    """Fill `folder` with the levels of the earlier run, and with the sentences of its comparison with a later one."""
    save_timeline(before, folder, on_done=on_done)
    words = with_translations({COMPARISON: comparison_words(comparison)})
    (folder / COMPARISON_FILE).write_bytes(json_bytes(words))


def with_comparison(run: RunView, folder: Path) -> RunView:
    """Return the later run with what is in `folder`, under a version that depends on both.

    Raises OSError or ValueError if the folder is incomplete.
    """
    words = json.loads((folder / COMPARISON_FILE).read_bytes())
    known = run.sections.get(TRANSLATIONS)
    translations = {} if known is None else json.loads(known.data)
    for language, texts in words.get(TRANSLATIONS, {}).items():
        translations[language] = translations.get(language, {}) | texts
    added = {COMPARISON: words[COMPARISON], **({TRANSLATIONS: translations} if translations else {})}
    sections = {
        **run.sections,
        **{name: Section(JSON_TYPE, json_bytes(value)) for name, value in added.items()},
    }
    meta = {**run.meta, "version": folder.name, "sections": list(sections)}
    return replace(
        run,
        version=folder.name,
        meta=meta,
        meta_data=json_bytes(meta),
        sections=sections,
        other=open_run(folder),
    )
