"""Runs as the local server shows them: tiles on disk, made unless a stored run or the cache directory has them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope import __version__
from stagescope.api.analyses import compare
from stagescope.api.code_checksums import checksum_of_code
from stagescope.api.large_runs import find_large_run, results_of_ranges
from stagescope.api.reading import RunFacts, inputs_of, read, read_options
from stagescope.api.run_cache import Input, Shown, cached_input
from stagescope.api.saved_pages import find_saved_page, keep_page, require_as_stored
from stagescope.api.stored_runs import stated, stored_run_of
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.stored_run import read_manifest, stored_state
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.tiles.cache import (
    cache_folder,
    content_key,
    fingerprint_files,
    keep_whole,
)
from stagescope.viewer.tiles.compared import save_comparison, with_comparison
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline
from stagescope.viewer.tiles.stored import save_large_run
from stagescope.viewer.tiles.table import find_large, save_table
from stagescope.vocabulary.errors import OutputError, UsageError
from stagescope.vocabulary.limits import checked_limits, limits_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from stagescope.api.saved_pages import SavedPage
    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.ingest import Inputs
    from stagescope.model import Timeline
    from stagescope.viewer.tiles.run import RunView
    from stagescope.viewer.tiles.stored import LargeRun

    Progress = Callable[[int, int], object]

CODE = (
    "analysis", "api", "clocks", "exporters", "ingest", "model", "record/format.py", "reports", "schedules", "viewer",
    "vocabulary",
)  # fmt: skip
"""Parts whose code determines what the cache has of a run: versions in development have the same number."""


@dataclass(frozen=True)
class Calls:
    """What is called while a run is read: `on_progress` as by `read`, `on_tiles` with spans done and of all.

    With `on_notice`, which is called with sentences for people, large runs are read through the cache of stored runs.
    """

    on_progress: Progress | None = None
    on_tiles: Progress | None = None
    on_notice: Callable[[str], object] | None = None


@dataclass(frozen=True)
class RunFiles:
    """The files of a run and how they are read. What depends on their content is read once: use it for one version."""

    paths: Sequence[str | os.PathLike[str]]
    facts: RunFacts
    align: bool = True
    calls: Calls = Calls()

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """The limits on what files may contain."""
        return checked_limits(self.facts.get("limits"))

    @cached_property
    def options(self) -> ReadOptions:
        """What the caller knows about the run."""
        return read_options(**self.facts)

    @cached_property
    def inputs(self) -> Inputs:
        """The files by reader. Raises InputError as `read` does."""
        with limits_in_force(self.limits):
            return inputs_of(self.paths, is_mapped=self.options.mapping is not None)

    @cached_property
    def files(self) -> list[Path]:
        """All files whose content matters, also that of a mapping. Raises InputError as `read` does."""
        mapping = self.facts.get("mapping")
        own = [] if mapping is None or not Path(mapping).is_file() else [Path(mapping)]
        return [*(file for group in self.inputs.files.values() for file in group), *own]

    @cached_property
    def way(self) -> str:
        """Everything besides the files on which the result of reading them depends."""
        facts = stated({**self.facts, "steps": self.options.steps})
        program = f"{__version__} {checksum_of_code(CODE)}"
        return json.dumps([program, facts, self.align, sorted(self.limits.items())], default=str)

    @property
    def state(self) -> str:
        """What of a stored run may change while its manifest, the only one of `files`, stays: its parts and sources."""
        with limits_in_force(self.limits):
            directory = stored_run_of(self.inputs)
            return "" if directory is None else stored_state(directory, read_manifest(directory))

    @cached_property
    def large_run(self) -> tuple[LargeRun, AnalysisLayers] | None:
        """A stored run that is shown a file at a time, analyzed if need be. Raises InputError if it is damaged."""
        is_plain = self.options == ReadOptions() and self.align
        found = find_large_run(self.read_inputs) if is_plain else None
        if found is None or self.source.paths is self.paths:
            return found
        return found[0]._replace(name=" ".join(str(os.fspath(path)) for path in self.paths)), found[1]

    @cached_property
    def source(self) -> Input:
        """What is read: the paths, or instead of large files the run in the cache."""
        if self.calls.on_notice is None:
            return Input(self.paths, self.facts)
        shown = Shown(self.calls.on_notice, self.calls.on_progress)
        return cached_input(self.paths, self.facts, shown, align=self.align)

    @cached_property
    def read_inputs(self) -> Inputs:
        """The files that are read, by reader."""
        return self.inputs if self.source.paths is self.paths else inputs_of(self.source.paths)

    @cached_property
    def timeline(self) -> Timeline:
        """The run, read as `read` does."""
        on_progress = self.calls.on_progress
        return read(*self.source.paths, align=self.align, on_progress=on_progress, **self.source.facts)


def view_run(
    *paths: str | os.PathLike[str],
    align: bool = True,
    on_progress: Progress | None = None,
    on_tiles: Progress | None = None,
    on_notice: Callable[[str], object] | None = None,
    **facts: Unpack[RunFacts],
) -> RunView:
    """Return a run as the local server shows it: tiles on disk, made now unless they are there already.

    Those of a stored run are in its directory if `save_page` has put them there for this version and these keywords,
    and are used while neither the run nor its sources have changed. All others are in the user's cache directory, and
    valid while the files are unchanged (viewer/tiles/cache.py).
    `on_progress` is called as by `read`, `on_tiles` with the number of spans done and of all spans. With `on_notice`,
    which is called with sentences for people, large runs are read through the cache of stored runs. Raises as `read`
    does, and OutputError if the cache cannot be written.
    """
    return view_files(RunFiles(paths, facts, align, Calls(on_progress, on_tiles, on_notice)))


def view_files(run: RunFiles) -> RunView:
    """Return what `view_run` does."""
    try:
        with limits_in_force(run.limits):
            directory = stored_run_of(run.inputs)
            saved = None if directory is None else find_saved_page(directory, run.way)
            if saved is not None:
                return saved
            key = content_key(run.files, run.way, run.state)
            return keep_whole(key, lambda folder: _fill(folder, run), open_run)
    except OSError as reason:
        raise OutputError.cannot_write(cache_folder(), reason) from reason


def save_page(
    directory: str | os.PathLike[str], *, align: bool = True, on_tiles: Progress | None = None
) -> SavedPage:
    """Save the page of a stored run beside it, unless it is there already, and return where it is and its size.

    `view_run` and `open` use it, also from another machine and without permission to write. A large run that was not
    analyzed is analyzed first. The page replaces that of another version; one that was not finished is removed and
    made again. `on_tiles` is called with the number of spans done and of all spans.

    Raises InputError and UsageError as `read` does, and InputError if files of the run are damaged or its sources have
    changed; OutputError if another process is writing the run, or the page cannot be written; CommandError if the
    libraries of the extra ``store`` are missing.
    """
    place = Path(directory)
    run = RunFiles([place], {}, align, Calls(on_tiles=on_tiles))
    name = place.resolve().name  # others reach the page under other paths
    with limits_in_force(run.limits):
        manifest = read_manifest(place)
        if manifest.aligned and not align:  # before the page that is there is removed
            raise UsageError.stored_aligned(place)
        large = run.large_run  # which is analyzed before the lock is held, because that takes it

        def make(folder: Path) -> None:
            require_as_stored(place, run.timeline if large is None else large[0].timeline)
            _fill(folder, run, name)

        return keep_page(place, run.way, manifest, make)


def view_compared(after: RunFiles, before: RunFiles) -> RunView:
    """Return the run `after` as `view_run` does, with its comparison with the run `before`. Raises as `view_run` does.

    Both are read as for `compare` unless the cache has the comparison.
    """
    view = view_files(after)

    def fill(folder: Path) -> None:
        found = compare(before.timeline, after.timeline)
        save_comparison(found, before.timeline, folder, before.calls.on_tiles)

    try:
        states = repr((after.state, before.state))
        key = content_key([*after.files, *before.files], repr((after.way, before.way)), states)
        return keep_whole(key, fill, lambda folder: with_comparison(view, folder))
    except OSError as reason:
        raise OutputError.cannot_write(cache_folder(), reason) from reason


def files_state(*paths: str | os.PathLike[str], limits: Mapping[str, int | str] | None = None) -> str:
    """Return a text that changes when a file that `view_run` reads has changed. Raises InputError as `read` does."""
    return state_of(RunFiles(paths, {"limits": limits}))


def state_of(*runs: RunFiles) -> str:
    """Return a text that changes when a file of one of the runs has changed. Raises InputError as `read` does."""
    return fingerprint_files(file for run in runs for file in run.files)


def _fill(folder: Path, run: RunFiles, name: str | None = None) -> None:
    """Fill the folder of a run; what is too large for a Timeline is read in parts. `name` is that of a LargeRun."""
    is_plain = run.options == ReadOptions()
    is_one_table = len(run.files) == 1 and [each.name for each in run.inputs.files] == ["parquet"]
    large = find_large(run.files[0]) if is_plain and is_one_table else None
    if large is not None:
        save_table(large, folder, run.calls.on_tiles)
        return
    if run.large_run is not None:
        large_run, extras = run.large_run
        shown_name = name or large_run.name  # the directory, unless it is another one that is shown
        save_large_run(large_run._replace(name=shown_name), folder, extras, run.calls.on_tiles)
        return
    extras = gather_extras(run.timeline)
    results = results_of_ranges(run.read_inputs) if is_plain and run.align else None
    if results is not None:
        extras = replace(extras, steps=results.steps, objects={**extras.objects, **results.objects})
    save_timeline(run.timeline, folder, extras, run.calls.on_tiles)
