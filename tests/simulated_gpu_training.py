"""Another training on a simulated GPU. Arguments: those of the training, after its script."""

from __future__ import annotations

import runpy
import sys

import pytest

import simulated_gpu

simulated_gpu.use(pytest.MonkeyPatch(), host=None)

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
