"""Shows recorded actions as ranges in other profilers: NVTX (Nsight), mstx (MindStudio) and Kineto (torch.profiler).

With ``stagescope run --also nvtx,kineto`` each action appears in those tools under its stagescope name, such as
``F1.3 step 2``. The cost per action is that of a range in the respective profiler; without the option the recorder
pays for one comparison. Only libraries that the training has already imported are used.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from stagescope.record.format import NONE
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME, label

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

OTHER = BY_NAME["other"].code


class Profiler(Protocol):
    """Another profiler that can open and close named ranges. If either call raises, the profiler is not used again."""

    def open(self, name: str) -> Any:
        """Open a range and return the object that `close` needs."""

    def close(self, opened: Any) -> None:
        """Close a range."""


class Nvtx:
    """NVTX ranges of the calling thread, through torch or Paddle (shown by Nsight Systems)."""

    def open(self, name: str) -> Any:
        """Push a range; return the function that pops it."""
        push, pop = self._functions()
        push(name)
        return pop

    def close(self, opened: Any) -> None:
        """Pop the range."""
        opened()

    def _functions(self) -> tuple[Callable[[str], object], Callable[[], object]]:
        torch = sys.modules.get("torch")
        if torch is not None:
            nvtx = torch.cuda.nvtx
            return nvtx.range_push, nvtx.range_pop
        core = sys.modules["paddle.base.core"]
        return core.nvprof_nvtx_push, core.nvprof_nvtx_pop


class Mstx:
    """Ranges on the NPU's current stream (shown by MindStudio and msprof)."""

    def open(self, name: str) -> Any:
        """Start a range; return its number."""
        npu = sys.modules["torch_npu"].npu
        return npu.mstx.range_start(name, npu.current_stream())

    def close(self, opened: Any) -> None:
        """End the range."""
        if opened is not None:
            sys.modules["torch_npu"].npu.mstx.range_end(opened)


class Kineto:
    """Annotations of torch.profiler."""

    def open(self, name: str) -> Any:
        """Enter an annotation and return it."""
        annotation = sys.modules["torch"].autograd.profiler.record_function(name)
        annotation.__enter__()
        return annotation

    def close(self, opened: Any) -> None:
        """Leave the annotation."""
        opened.__exit__(None, None, None)


PROFILERS: dict[str, Callable[[], Profiler]] = {"kineto": Kineto, "mstx": Mstx, "nvtx": Nvtx}
"""Valid names for ``--also``."""


def parse_profilers(text: str) -> tuple[str, ...]:
    """Return the distinct names in a list such as ``nvtx,kineto``; raises UsageError for an unknown one."""
    names = tuple(dict.fromkeys(filter(None, (part.strip().lower() for part in text.split(",")))))
    unknown = [name for name in names if name not in PROFILERS]
    if unknown or not names:
        raise UsageError.mirror_unknown(unknown[0] if unknown else text, PROFILERS)
    return names


def install(names: tuple[str, ...], recorder: Recorder, patches: Patches) -> None:
    """Show actions and manually marked spans in the profilers `names`."""
    from stagescope.record import spans  # circular: spans imports this package

    mirrors = recorder.mirror = Mirrors(recorder, names)
    recorder.unsettle()

    class MirroredSpan(spans.DetailedSpan):
        """Records like any span, and opens a range around the body in the other profilers."""

        __slots__ = ()

        def __enter__(self) -> None:
            mirrors.open_span(self.kind, {"stage": self.stage, "microbatch": self.microbatch})
            super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)  # type: ignore[arg-type]  # the arguments of the with statement
            mirrors.close()

    patches.replace(spans, "DETAILED", MirroredSpan)
    patches.replace(spans, "PLAIN", MirroredSpan)


class Mirrors:
    """Opens and closes the same ranges in all requested profilers. Never raises."""

    def __init__(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        self._recorder = recorder
        self._profilers = {name: PROFILERS[name]() for name in names}
        self._open = threading.local()

    def open(self, kind: int, stage: int = NONE, microbatch: int = NONE, name: str = "") -> None:
        """Open the range of an action. Without stage and micro-batch it is named after its kind."""
        text = self.name_of(kind, stage, microbatch, name)
        opened = []
        for profiler_name, profiler in list(self._profilers.items()):
            try:
                opened.append((profiler_name, profiler, profiler.open(text)))
            except Exception as error:  # noqa: BLE001, PERF203  # errors of another library must not stop the training
                self._give_up(profiler_name, error)
        self._stack().append(opened)

    def open_span(self, kind: object, details: dict[str, Any]) -> None:
        """Open the range of a manually marked span, unless recording is off."""
        if not self._recorder.enabled:
            self._stack().append([])  # so that the matching `close` has an entry to pop
            return
        known = BY_NAME.get(kind) if isinstance(kind, str) else None
        numbers = [details.get(name) for name in ("stage", "microbatch")]
        stage, microbatch = (number if isinstance(number, int) else NONE for number in numbers)
        self.open(known.code if known else OTHER, stage, microbatch, "" if known else str(kind))

    def close(self) -> None:
        """Close the most recently opened ranges of this thread."""
        stack = self._stack()
        for profiler_name, profiler, opened in reversed(stack.pop() if stack else []):
            try:
                profiler.close(opened)
            except Exception as error:  # noqa: BLE001, PERF203  # as above
                self._give_up(profiler_name, error)

    def name_of(self, kind: int, stage: int, microbatch: int, name: str = "") -> str:
        """Return the name of an action in the other profilers, such as ``F1.3 step 2``."""
        text = name or _label(kind, stage, microbatch)
        return text if self._recorder.step == NONE else f"{text} step {self._recorder.step}"

    def _stack(self) -> list[list[tuple[str, Profiler, Any]]]:
        try:
            return self._open.stack  # type: ignore[no-any-return]  # set below
        except AttributeError:
            self._open.stack = []
            return self._open.stack  # type: ignore[no-any-return]  # just set

    def _give_up(self, profiler: str, error: Exception) -> None:
        self._profilers.pop(profiler, None)
        self._recorder.warn(f"{profiler} ranges are no longer written: {_reason(error)}")


def _label(kind: int, stage: int, microbatch: int) -> str:
    """Return the usual notation as far as stage and micro-batch are known: ``F1.3``, ``F1`` or ``F.3``."""
    name = BY_CODE[kind].name
    if NONE not in (stage, microbatch):
        return label(name, stage, microbatch)
    if stage == microbatch == NONE:
        return name
    letter = BY_NAME[name].letter
    return f"{letter}{stage}" if microbatch == NONE else f"{letter}.{microbatch}"


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):  # raised by sys.modules[...]
        return f"the training has not imported {error.args[0]}"
    return f"{type(error).__name__}: {error}"
