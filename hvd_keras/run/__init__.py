"""hvdrun: starts the ranks of a job and looks after them, on several hosts too.

It uses the standard library only and never imports TensorFlow. The package can
be called: `hvd_keras.run(fn, np=2)` is `hvd_keras.run.function.run`.
"""

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """A package and a function of one name: `python -m` needs the package."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        from hvd_keras.run.function import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
