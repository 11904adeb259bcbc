"""Show a run in the browser, from a server on this machine."""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope.analysis import Report
from stagescope.api.analyses import compare as compare_runs
from stagescope.api.live_training import LiveTraining, is_running
from stagescope.api.query_service import QueryService
from stagescope.api.reading import RunFacts, read, read_options
from stagescope.api.run_views import Calls, RunFiles, state_of, view_compared, view_files
from stagescope.ingest.reader import ReadOptions
from stagescope.model import Timeline
from stagescope.viewer.analysis_data import gather_extras, report_extras
from stagescope.viewer.server.launch import open_browser
from stagescope.viewer.server.live import LiveRun, Opener
from stagescope.viewer.server.serve import listen, require_loopback
from stagescope.viewer.tiles.compared import save_comparison, with_comparison
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from typing_extensions import Self, Unpack

    from stagescope.viewer.server.serve import Listening
    from stagescope.viewer.tiles.run import RunView

    Progress = Callable[[int, int], object]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Viewer:
    """The local server of one run. `link` opens the viewer once: it contains a one-time token.

    `meta` describes the run: title, span_count, diagnostics; `compared` the run that it is compared with, None without.
    Used in a `with` statement, the server ends with it.
    """

    link: str
    meta: Mapping[str, Any]
    compared: Mapping[str, Any] | None
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
    compare: str | os.PathLike[str] | Timeline | Report | None = None,
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
        with ExitStack() as failed:
            folder = tempfile.TemporaryDirectory(prefix="stagescope-")
            failed.callback(folder.cleanup)
            view = _view_of(run, compare, Path(folder.name), on_tiles)
            queries = QueryService(lambda: run)
            listening = listen(
                LiveRun(Opener(lambda: "", lambda: view), view, ""), host, port, query=queries.answer
            )
            failed.pop_all()
        return Viewer(listening.link, view.meta, _other(view), listening, folder)
    paths = [_path(each) for each in source]
    if isinstance(compare, (Timeline, Report)):
        raise TypeError("compare must be a path if the run is read from paths")
    compared = None if compare is None else _path(compare)
    is_plain = compared is None and align and read_options(**facts) == ReadOptions()
    if live and is_plain and is_running(*paths):
        training = LiveTraining(*paths)
        listening = listen(training, host, port)
        training.start()
        return Viewer(listening.link, training.current.meta, None, listening, _training=training)

    def view_now(calls: Calls) -> RunView:
        after = RunFiles(paths, facts, align, calls)
        return (
            view_files(after)
            if compared is None
            else view_compared(after, RunFiles([compared], facts, align, calls))
        )

    def look() -> str:
        runs = [paths] if compared is None else [paths, [compared]]
        return state_of(*(RunFiles(each, facts) for each in runs))

    state = look()
    later = Calls(on_notice=None if on_notice is None else str)  # no one sees a refresh in the terminal
    view = view_now(Calls(on_progress, on_tiles, on_notice))
    queries = QueryService(
        partial(read, *paths, align=align, **facts),
        lambda: state_of(RunFiles(paths, facts)),
        facts.get("limits"),
    )
    opener = Opener(look, partial(view_now, later))
    listening = listen(LiveRun(opener, view, state), host, port, query=queries.answer)
    return Viewer(listening.link, view.meta, _other(view), listening)


def _other(view: RunView) -> Mapping[str, Any] | None:
    return None if view.other is None else view.other.meta


def _view_of(
    run: Timeline | Report,
    compared: str | os.PathLike[str] | Timeline | Report | None,
    folder: Path,
    on_tiles: Progress | None,
) -> RunView:
    """Return a run that is in memory, with its files in `folder`."""
    timeline, extras = (
        (run.timeline, report_extras(run)) if isinstance(run, Report) else (run, gather_extras(run))
    )
    place = folder / "run"
    place.mkdir()
    save_timeline(timeline, place, extras, on_tiles)
    if compared is None:
        return open_run(place)
    before = compared.timeline if isinstance(compared, Report) else compared
    before = before if isinstance(before, Timeline) else read(before)
    other = folder / "compared"
    other.mkdir()
    save_comparison(compare_runs(before, timeline), before, other, on_tiles)
    return with_comparison(open_run(place), other)


def _path(source: object) -> str | os.PathLike[str]:
    if isinstance(source, str | Path) or hasattr(source, "__fspath__"):
        return source
    raise TypeError(f"open() takes paths, a Timeline or a Report, not {type(source).__name__}")


def open(  # noqa: A001 - the public verb, as in gzip.open
    *source: str | os.PathLike[str] | Timeline | Report,
    compare: str | os.PathLike[str] | Timeline | Report | None = None,
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

    With `compare`, an earlier run, the page opens with the comparison of the two, as one of `export_comparison` does: a
    path that is read with the same keywords, or a Timeline or Report if `source` is one. A training that is still
    running is then read as with `live=False`.

    Runs read from paths are read again when their files change. A training that is still running is followed: the page
    has its last steps, and what its ranks are doing. With `live=False`, or with keywords of `read`, all of it is read.

    Raises as `read` does, UsageError for another host, and CommandError if the port is in use.

    >>> from stagescope.api import simulate
    >>> with open(simulate("1f1b", ranks=2, microbatches=4).timeline, browser=False) as viewer:
    ...     viewer.meta["span_count"]
    16
    """
    viewer = prepare_viewer(*source, compare=compare, host=host, port=port, align=align, live=live, **facts)
    viewer.start()
    if browser:
        viewer.open_browser()
    return viewer
