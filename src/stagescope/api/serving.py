"""Show a run in the browser, from a server on this machine."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope import __version__
from stagescope.analysis import Report
from stagescope.api.large_runs import find_large_run
from stagescope.api.live_training import LiveTraining, is_running
from stagescope.api.query_service import QueryService
from stagescope.api.reading import RunFacts, inputs_of, read, read_options
from stagescope.api.run_cache import Input, Shown, cached_input
from stagescope.ingest.reader import ReadOptions
from stagescope.model import Timeline
from stagescope.viewer.analysis_data import gather_extras, report_extras
from stagescope.viewer.server.launch import open_browser
from stagescope.viewer.server.live import LiveRun, Opener
from stagescope.viewer.server.serve import listen, require_loopback
from stagescope.viewer.tiles.cache import cache_folder, content_key, fingerprint_files
from stagescope.viewer.tiles.run import keep_run, open_run
from stagescope.viewer.tiles.sources import save_timeline
from stagescope.viewer.tiles.stored import save_large_run
from stagescope.viewer.tiles.table import find_large, save_table
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from typing_extensions import Self, Unpack

    from stagescope.viewer.server.serve import Listening
    from stagescope.viewer.tiles.run import RunView

    Progress = Callable[[int, int], object]

LOOPBACK = "127.0.0.1"


def view_run(
    *paths: str | os.PathLike[str],
    align: bool = True,
    on_progress: Progress | None = None,
    on_tiles: Progress | None = None,
    on_notice: Callable[[str], object] | None = None,
    **facts: Unpack[RunFacts],
) -> RunView:
    """Return a run as the local server shows it: tiles on disk, made now unless they are in the cache.

    The cache is in the user's cache directory and valid while the files are unchanged (viewer/tiles/cache.py).
    `on_progress` is called as by `read`, `on_tiles` with the number of spans done and of all spans. With `on_notice`,
    which is called with sentences for people, large runs are read through the cache of stored runs. Raises as `read`
    does, and OutputError if the cache cannot be written.
    """
    options = read_options(**facts)
    limits = checked_limits(facts.get("limits"))
    with limits_in_force(limits):
        inputs = inputs_of(paths)
    files_by_reader = inputs.files
    files = [file for group in files_by_reader.values() for file in group]
    facts_of_run = options.layout, options.schedule, options.microbatches, options.pattern, options.attempt
    key = repr((__version__, *facts_of_run, options.pipeline, align, sorted(limits.items())))
    is_plain = options == ReadOptions()
    is_one_plain_table = (
        is_plain and len(files) == 1 and [each.name for each in files_by_reader] == ["parquet"]
    )

    def fill(folder: Path) -> None:
        large = find_large(files[0]) if is_one_plain_table else None
        if large is not None:
            save_table(large, folder, on_tiles)
            return
        stored = find_large_run(inputs) if is_plain and align else None
        if stored is not None:
            run, extras = stored
            save_large_run(run, folder, extras, on_tiles)
            return
        source = Input(paths, facts)
        if on_notice is not None:
            source = cached_input(paths, facts, Shown(on_notice, on_progress), align=align)
        timeline = read(*source.paths, align=align, on_progress=on_progress, **source.facts)
        save_timeline(timeline, folder, gather_extras(timeline), on_tiles)

    try:
        with limits_in_force(limits):
            return keep_run(content_key(files, key), fill)
    except OSError as reason:
        raise OutputError.cannot_write(cache_folder(), reason) from reason


def files_state(*paths: str | os.PathLike[str], limits: Mapping[str, int | str] | None = None) -> str:
    """Return a text that changes when a file that `view_run` reads has changed. Raises InputError as `read` does."""
    with limits_in_force(checked_limits(limits)):
        return fingerprint_files(file for group in inputs_of(paths).files.values() for file in group)


@dataclass(frozen=True)
class Viewer:
    """The local server of one run. `link` opens the viewer once: it contains a one-time token.

    `meta` describes the run: title, span_count, diagnostics. Used in a `with` statement, the server ends with it.
    """

    link: str
    meta: Mapping[str, Any]
    _listening: Listening = field(repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    _threads: list[threading.Thread] = field(default_factory=list, repr=False)
    _training: LiveTraining | None = field(default=None, repr=False)

    @property
    def is_live(self) -> bool:
        """Whether a training is followed that is running now."""
        return self._training is not None

    def ended_by_ctrl_c(self) -> AbstractContextManager[None]:
        """Return a context in which Ctrl-C ends the server without an exception, also before it answers."""
        return self._listening.ended_by_ctrl_c()

    def open_browser(self) -> None:
        """Open the link in the user's browser."""
        open_browser(self.link)

    def start(self) -> None:
        """Answer in a background thread, which ends with `close` or with the process."""
        thread = threading.Thread(target=self._listening.run, name="stagescope-viewer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def run(self) -> None:
        """Answer in the calling thread until Ctrl-C."""
        self._listening.run()

    def wait(self) -> None:
        """Block until the server that `start` began has ended, or until Ctrl-C."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """End the server and wait until it has ended."""
        self._listening.server.should_exit = True
        self.wait()
        self._listening.socket.close()
        if self._training is not None:
            self._training.close()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        """Return the viewer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self.close()


def prepare_viewer(
    *source: str | os.PathLike[str] | Timeline | Report,
    host: str = LOOPBACK,
    port: int = 0,
    align: bool = True,
    on_progress: Progress | None = None,
    on_tiles: Progress | None = None,
    live: bool = True,
    on_notice: Callable[[str], object] | None = None,
    **facts: Unpack[RunFacts],
) -> Viewer:
    """Return a server that listens and does not answer yet: call `start` or `run` of it.

    Everything is as in `open`; `on_progress`, `on_tiles` and `on_notice` are called as by `view_run`.
    """
    require_loopback(host)  # before minutes of work
    (run, *others) = source or (None,)
    if isinstance(run, (Timeline, Report)):
        if others or facts:
            raise TypeError(
                "a Timeline or Report is opened alone, without further sources or keywords of read()"
            )
        folder = tempfile.TemporaryDirectory(prefix="stagescope-")
        timeline, extras = (
            (run.timeline, report_extras(run)) if isinstance(run, Report) else (run, gather_extras(run))
        )
        save_timeline(timeline, Path(folder.name), extras, on_tiles)
        view = open_run(Path(folder.name))
        queries = QueryService(lambda: run)
        listening = listen(
            LiveRun(Opener(lambda: "", lambda: view), view, ""), host, port, query=queries.answer
        )
        return Viewer(listening.link, view.meta, listening, folder)
    paths = [_path(each) for each in source]
    if live and align and read_options(**facts) == ReadOptions() and is_running(*paths):
        training = LiveTraining(*paths)
        listening = listen(training, host, port)
        training.start()
        return Viewer(listening.link, training.current.meta, listening, _training=training)
    look = partial(files_state, *paths, limits=facts.get("limits"))
    state = look()
    later = None if on_notice is None else str  # of a refresh, which no one sees in the terminal
    again = partial(view_run, *paths, align=align, on_notice=later, **facts)
    view = again(on_progress=on_progress, on_tiles=on_tiles, on_notice=on_notice)
    queries = QueryService(partial(read, *paths, align=align, **facts), look, facts.get("limits"))
    listening = listen(LiveRun(Opener(look, again), view, state), host, port, query=queries.answer)
    return Viewer(listening.link, view.meta, listening)


def _path(source: object) -> str | os.PathLike[str]:
    if isinstance(source, str | Path) or hasattr(source, "__fspath__"):
        return source
    raise TypeError(f"open() takes paths, a Timeline or a Report, not {type(source).__name__}")


def open(  # noqa: A001 - the public verb, as in gzip.open
    *source: str | os.PathLike[str] | Timeline | Report,
    host: str = LOOPBACK,
    port: int = 0,
    browser: bool = True,
    align: bool = True,
    live: bool = True,
    **facts: Unpack[RunFacts],
) -> Viewer:
    """Return the running viewer of a run, after opening it in the browser unless `browser` is False.

    `source` is a Timeline, a Report, or paths as for `read` with its keywords. The server answers on this machine
    only, in a background thread, until `close` is called or the process ends; a script that does nothing else calls
    `wait`.
    `host` is a loopback address; `port` 0 picks a free port.

    Runs read from paths are read again when their files change. A training that is still running is followed: the page
    has its last steps, and what its ranks are doing. With `live=False`, or with keywords of `read`, all of it is read.

    Raises as `read` does, UsageError for another host, and CommandError if the port is in use.

    >>> from stagescope.api import simulate
    >>> with open(simulate("1f1b", ranks=2, microbatches=4).timeline, browser=False) as viewer:
    ...     viewer.meta["span_count"]
    16
    """
    viewer = prepare_viewer(*source, host=host, port=port, align=align, live=live, **facts)
    viewer.start()
    if browser:
        viewer.open_browser()
    return viewer
