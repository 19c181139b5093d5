"""Calls functions when packages are there, whoever imports them and when."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_OURS = __name__.partition(".")[0]


class _Watch(importlib.abc.MetaPathFinder):
    """Calls a function for each package at the end of its import.

    It waits until no import of a watched package, or of a module of ours, is
    under way. Those import each other, and a function may need them whole.
    """

    def __init__(self, functions: Mapping[str, Callable[[], object]]) -> None:
        self._functions = dict(functions)
        self._num_imports = 0

    def call(self) -> None:
        """Calls the functions of those packages that are there."""
        for name in list(self._functions):
            if self._num_imports == 0 and sys.modules.get(name) is not None:
                self._num_imports += 1
                try:
                    self._functions[name]()
                finally:
                    self._num_imports -= 1
                del self._functions[name]

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = self._functions and name.partition(".")[0] == _OURS
        if name not in self._functions and not is_ours:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    loader: Any = spec.loader
                    loader.exec_module = functools.partial(
                        self._run, loader.exec_module
                    )
                    return spec
        return None

    def _run(self, run: Callable[[Any], None], module: Any) -> None:
        self._num_imports += 1
        try:
            run(module)
        finally:
            self._num_imports -= 1
        self.call()


def call_when_imported(functions: Mapping[str, Callable[[], object]]) -> None:
    """Calls the function of each package now, or once it has been imported.

    An error of a function is one of the import. The next import calls it again.
    """
    watch = _Watch(functions)
    sys.meta_path.insert(0, watch)
    watch.call()
