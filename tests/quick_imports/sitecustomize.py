"""Begins each Python process of a test's job: see clean_environ.py.

While TensorFlow, Keras and others are imported, Python looks through all
objects for garbage again and again, and once more when the process ends. There
is next to none. Without that a rank takes 1.9 s of the processor instead of
3.2 s to start and to end (TensorFlow 2.21).
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_LARGE = {"jax", "keras", "tensorflow", "torch"}


class _Loader(importlib.abc.Loader):
    """Loads a package as another loader does, and collects no garbage."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(
        self, spec: importlib.machinery.ModuleSpec
    ) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        is_first = gc.isenabled()
        gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            if is_first:
                gc.freeze()
                gc.enable()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        if fullname not in _LARGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
