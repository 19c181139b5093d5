"""Finds the lines of a user's own code in stacks."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Sequence

# Ends with a separator.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_INSTALLED = ("/site-packages/", "/dist-packages/")
# TensorFlow runs what AutoGraph has made of a function from a file of its own.
_MADE = "__autograph_generated_file"


@dataclasses.dataclass(frozen=True)
class Frame:
    """One call: where it is in the source."""

    file: str
    line: int

    def __str__(self) -> str:
        path = os.path.relpath(self.file) if self.file[:1] == "/" else self.file
        shown = self.file if path.startswith("..") else path
        return f"{shown}:{self.line}"


Stack = Sequence[Frame]  # the innermost first


def own_frame(stack: Stack, foreign: Sequence[str]) -> Frame | None:
    """Returns the innermost call in the user's own code.

    Args:
        stack: Where a thread is.
        foreign: Folders whose code is not the user's.
    """
    own = None
    calls_from_foreign = False
    for frame in reversed(stack):
        is_foreign = is_in_library(frame.file, foreign)
        # Libraries make code that has no file, such as ops of TensorFlow. In a
        # traceback their own frames may be left out.
        is_made = _MADE in frame.file or (
            frame.file.startswith("<")
            and (calls_from_foreign or _is_of_file(own))
        )
        calls_from_foreign = is_foreign or is_made
        if not calls_from_foreign:
            own = frame
    return own


def _is_of_file(frame: Frame | None) -> bool:
    return frame is not None and not frame.file.startswith("<")


def is_in_library(file: str, foreign: Sequence[str]) -> bool:
    """Whether code of this file is not the user's."""
    return file.startswith(("<frozen ", *foreign)) or any(
        part in file for part in _INSTALLED
    )


@functools.cache
def foreign_folders() -> tuple[str, ...]:
    """Returns the folders whose code the user has not written."""
    installed = sysconfig.get_paths()
    folders = {installed[key] for key in ("stdlib", "purelib", "platlib")}
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return tuple(os.path.join(one, "") for one in sorted({*folders, package}))


def without_ours(
    trace: types.TracebackType | None,
) -> types.TracebackType | None:
    """Returns a traceback without the frames of hvd_keras."""
    return _without(trace, lambda file: file.startswith(_PACKAGE))


def own_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback of the user's frames alone; all, if there is none."""
    foreign = foreign_folders()
    return _without(trace, lambda file: is_in_library(file, foreign)) or trace


def _without(
    trace: types.TracebackType | None, is_left_out: Callable[[str], bool]
) -> types.TracebackType | None:
    found = []
    while trace is not None:
        if not is_left_out(trace.tb_frame.f_code.co_filename):
            found.append(trace)
        trace = trace.tb_next
    kept: types.TracebackType | None = None
    for one in reversed(found):
        kept = types.TracebackType(
            kept, one.tb_frame, one.tb_lasti, one.tb_lineno
        )
    return kept


def place() -> str:
    """Returns where the user's code is that has called this; "": unknown."""
    frames = traceback.walk_stack(sys._getframe(1))
    stack = [Frame(f.f_code.co_filename, line) for f, line in frames]
    found = own_frame(stack, foreign_folders())
    return "" if found is None else str(found)


def called() -> str:
    """Returns the function of ours that other code calls; "": a private one."""
    name = ""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            break
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11
    name = name.removesuffix(".__init__")
    is_public = not any(p.startswith(("_", "<")) for p in name.split("."))
    return name if is_public else ""
