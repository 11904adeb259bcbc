"""Replaces packages that ColossalAI imports for models and data by empty ones: no schedule uses them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

REPLACED = (
    "bitsandbytes", "click", "contexttimer", "diffusers", "fabric", "fastapi", "galore_torch", "google", "peft", "ray",
    "rich", "rpyc", "safetensors", "sentencepiece", "tensornvme", "transformers", "uvicorn",
)  # fmt: skip


class Empty(types.ModuleType):
    """A module of a package that is not installed: every name in it is an empty class."""

    __path__: list[str] = []  # noqa: RUF012  # makes it a package

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


class EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that are replaced."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        is_replaced = name.split(".")[0] in REPLACED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_replaced else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def replace_packages() -> None:
    """Find empty packages from now on. To be called after ``import torch``, which would take them for the real ones."""
    sys.meta_path.append(EmptyPackages())
