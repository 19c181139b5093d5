"""Keeps functions out of what `torch.compile` compiles.

`torch.compiler.disable` does that, but loads the compiler: a second of each
rank's processor, also where nobody compiles. This waits until somebody has.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hvd_keras._common.when_imported import call_when_imported

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_COMPILER = "torch._dynamo"

_waiting: list[Callable[[], None]] = []


def uncompiled(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Returns a function that runs as it stands inside of a compiled one."""
    run = function

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kw: _Arguments.kwargs) -> _Result:
        return run(*args, **kw)

    def disable() -> None:
        nonlocal run
        import torch

        run = torch.compiler.disable(function)

    if _COMPILER in sys.modules:
        disable()
    else:
        _waiting.append(disable)
    return call


def _disable_all() -> None:
    while _waiting:
        _waiting.pop()()


call_when_imported({_COMPILER: _disable_all})
