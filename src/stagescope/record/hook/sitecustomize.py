"""Found by Python at start-up through PYTHONPATH; arms the recorder, then steps out of the way.

A sitecustomize of the user's own, which this file hides, runs right after. stagescope is loaded from where this
file lies, without putting that folder on sys.path: the training's own environment stays as it is.
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
            raise ImportError(f"stagescope is not in {package}")
        sys.modules["stagescope"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["stagescope"])
    from stagescope.record.startup import arm

    arm()


def _is_same(entry: str, directory: str) -> bool:
    try:
        return os.path.abspath(entry) == directory
    except OSError:  # a relative entry where the current directory has been deleted
        return False


def _run_own_sitecustomize() -> None:
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # the next one on the path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


try:
    _arm()
except Exception as error:  # noqa: BLE001  # whatever is wrong here, the training must start
    sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")
_run_own_sitecustomize()
