"""Imported by Python at start-up through PYTHONPATH; starts the recorder, then makes itself invisible.

A sitecustomize of the user, which this file shadows, runs right after it. stagescope is loaded relative to this file
without adding its folder to sys.path, so the environment of the training stays unchanged.
"""

import importlib
import importlib.util
import os
import sys


def _arm() -> None:
    hook = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(hook))
    sys.path[:] = [entry for entry in sys.path if not _is_same(entry, hook)]
    if "stagescope" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "stagescope", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"stagescope is not installed in {package}")
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
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # the next one on sys.path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


try:
    _arm()
except Exception as error:  # noqa: BLE001  # the training must start in any case
    sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")
_run_own_sitecustomize()
