"""Begins each Python process of a test's job: see clean_environ.py.

While TensorFlow, Keras and others are imported, Python looks through all
objects for garbage again and again, and once more when the process ends. There
is next to none. Without that a rank takes 1.9 s of the processor instead of
3.2 s to start and to end (TensorFlow 2.21).

A thousand of TensorFlow's modules only give its functions their public names,
in several versions. Here such a module runs when a name is looked up in it. And
`tf.nn` runs the Keras of TensorFlow 1 for three wrappers of cells, which are
left out: no test uses them. Without both, a job of two ranks that train for
moments takes 6.5 s of the processor instead of 7.5 (medians of five in turns).

`typing` compiles each string that names a type. TensorFlow has 15,800 of them,
but only 234 that differ: compiled once each, such a job takes 4.3 s, not 4.9.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import sys
import threading
import typing
from collections.abc import Sequence
from types import ModuleType

_LARGE = {"jax", "keras", "tensorflow", "torch"}
_NAMES_ALONE = "tensorflow._api.v2."
_OLD_KERAS = ("tensorflow.python.keras", "tensorflow.python.keras.layers")
_WRAPPERS = "tensorflow.python.keras.layers.rnn_cell_wrapper_v2"


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


class _LateLoader(_Loader):
    """Loads a module as another loader does, when a name is looked up in it."""

    def exec_module(self, module: ModuleType) -> None:
        names = vars(module)
        lock = threading.RLock()  # other threads wait until all names are there
        is_running = False

        def run() -> None:
            nonlocal is_running
            with lock:
                if is_running or names.get("__getattr__") is not look_up:
                    return
                is_running = True
                try:
                    self._loader.exec_module(module)
                finally:
                    is_running = False
                for name, own in (
                    ("__getattr__", look_up),
                    ("__dir__", list_names),
                ):
                    if names[name] is own:
                        del names[name]

        def look_up(name: str) -> object:
            run()
            if name in names:
                return names[name]
            raise AttributeError(f"{module.__name__} has no {name!r}")

        def list_names() -> list[str]:
            run()
            return list(names)

        names.update(__getattr__=look_up, __dir__=list_names)


class _EmptyLoader(importlib.abc.Loader):
    """Makes a module that has each name, of a class that does nothing."""

    def exec_module(self, module: ModuleType) -> None:
        def look_up(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__module__": module.__name__})

        vars(module)["__getattr__"] = look_up


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        if fullname == _WRAPPERS:
            return importlib.machinery.ModuleSpec(fullname, _EmptyLoader())
        is_large = fullname in _LARGE
        is_late = fullname in _OLD_KERAS or fullname.startswith(_NAMES_ALONE)
        if not is_large and not is_late:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            make = _LateLoader if is_late else _Loader
            spec.loader = make(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
typing.compile = functools.cache(compile)  # type: ignore[attr-defined]
