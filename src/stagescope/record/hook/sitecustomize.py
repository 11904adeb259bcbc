"""Imported by Python at start-up through PYTHONPATH; prepares for the recorder, then makes itself invisible.

`stagescope install-hook` has it run by a .pth file instead, under another name (record/startup_file.py).

Most processes of a command train nothing. The recorder is therefore loaded when a process imports a framework, or
stagescope itself; before that, only a finder that waits for such an import is in ``sys.meta_path``.

A sitecustomize of the user, which this file shadows, runs right after it. stagescope is loaded relative to this file
without adding its folder to sys.path, so the environment of the training stays unchanged.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would cost every process 5 ms
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

FRAMEWORKS = frozenset(
    {"colossalai", "deepspeed", "flagscale", "megatron", "mindspeed", "paddle", "primus", "torch"}
)
"""The packages that contain the modules in `record.session.FRAMEWORKS`."""


class FirstImport:
    """Loads the recorder when a framework is imported for the first time. `record` itself calls `arm`."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find stagescope, which need not be installed where Python looks for it; the other finders find the rest."""
        del path, target
        if fullname == "stagescope":
            return _spec()
        if fullname in FRAMEWORKS:
            self.arm()
        return None

    def arm(self) -> None:
        """Start the recorder, once."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            _arm()
        except Exception as error:  # noqa: BLE001  # the training must go on in any case
            sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")


def _hide() -> None:
    hook = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not _is_same(entry, hook)]


def _spec() -> ModuleSpec | None:
    import importlib.util  # not needed before

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return importlib.util.spec_from_file_location(
        "stagescope", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )


def _arm() -> None:
    if "stagescope" not in sys.modules:
        import importlib.util  # as above

        spec = _spec()
        if spec is None or spec.loader is None:
            raise ImportError("stagescope cannot be loaded")
        sys.modules["stagescope"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["stagescope"])
    from stagescope.record.startup import arm

    arm()


def _is_same(entry: str, directory: str) -> bool:
    try:
        return os.path.abspath(entry) == directory
    except OSError:  # a relative entry, and the working directory has been deleted
        return False


def _run_own_sitecustomize() -> None:
    import importlib

    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # the next one on sys.path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _prepare() -> None:
    """Wait for the import of a framework, unless both ways to get here were taken."""
    if any(type(finder).__name__ == FirstImport.__name__ for finder in sys.meta_path):
        return
    first = FirstImport()
    sys.meta_path.insert(0, first)
    if not FRAMEWORKS.isdisjoint(sys.modules):  # imported by a .pth file
        first.arm()


try:
    _hide()
    _prepare()
except Exception as error:  # noqa: BLE001  # the training must start in any case
    sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")
if __name__ == "sitecustomize":
    _run_own_sitecustomize()
