"""Notices how this process is ending."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from hvd_keras import exceptions
from hvd_keras._common import remarks, training_signs, user_code
from hvd_keras._common.error_text import error_in
from hvd_keras._records.evidence import IN_FIT

_EAGER_WRAPPING = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\].*$")
# A call, as AutoGraph lists it.
_CALL = re.compile(r'^    File "')
# The stack of a Python function that a kernel called, a call, and the error.
_STACK = re.compile(r"Traceback \(most recent call last\):")
_STACK_CALL = re.compile(r'^  File "')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(: |$)")
# The line in which AutoGraph repeats an error: its class, then the text.
_OF_AUTOGRAPH = re.compile(r"^    [A-Za-z_][\w.]*: ")
_BOLD = re.compile(r"\x1b\[\d*m")
_installed = False
_rank = 0
_exit_call = ""
_pid = os.getpid()


def install(
    on_failure: Callable[[str, BaseException], None], rank: int
) -> None:
    """Calls `on_failure` before an exception ends the process.

    It gets the reason, and the exception.

    Earlier hooks run after it. A second call of `install` does nothing but note
    the rank.
    """
    global _installed, _pid, _rank
    _pid, _rank = os.getpid(), rank
    if _installed:
        return
    _installed = True
    previous = sys.excepthook
    previous_in_thread = threading.excepthook

    def hook(
        kind: type[BaseException],
        value: BaseException,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not _goes_on_after_exceptions():
                on_failure(describe(kind, value), value)
        finally:
            if issubclass(kind, KeyboardInterrupt):
                _print_interrupt(previous, value, trace)
            else:
                previous(kind, value, trace)

    def hook_in_thread(args: threading.ExceptHookArgs) -> None:
        # The process goes on without the thread. Note the error: if the
        # process ends later, this is the likely reason.
        try:
            thread = args.thread.name if args.thread else "?"
            value = args.exc_value or args.exc_type()
            text = describe(args.exc_type, value)
            _note(f"{text} (in thread {thread})")
            if isinstance(value, exceptions.HvdError):
                _tell_of_thread(thread, text, args.exc_traceback)
        finally:
            previous_in_thread(args)

    sys.excepthook = hook
    threading.excepthook = hook_in_thread
    sys.exit = _noting(sys.exit)


def _tell_of_thread(
    thread: str, text: str, trace: TracebackType | None
) -> None:
    stack = [
        user_code.Frame(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
    ]
    place = user_code.own_frame(stack[::-1], user_code.foreign_folders())
    remarks.keep(
        "A call in a thread has failed, and the script has gone on without it: "
        "let all ranks make that call, and take the thread's result before the "
        f"script ends. Received: {text} in thread {thread!r} at {place}.",
        about="thread",
    )


def _print_interrupt(
    hook: Callable[..., object],
    value: BaseException,
    trace: TracebackType | None,
) -> None:
    """Prints the user's part of the stack; all ranks but 0, one line of it."""
    trace = user_code.own_part(trace)
    value.__suppress_context__ = True
    if _rank == 0 or hook is not sys.__excepthook__ or trace is None:
        # Python prints the stack that the exception itself has.
        hook(type(value), value.with_traceback(trace), trace)
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = user_code.Frame(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    print(f"KeyboardInterrupt at {frame}", file=sys.stderr)


def _noting(original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    @functools.wraps(original)
    def leave(*status: Any) -> NoReturn:
        global _exit_call
        caller = sys._getframe(1)
        frame = user_code.Frame(caller.f_code.co_filename, caller.f_lineno)
        foreign = user_code.foreign_folders()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not user_code.is_in_library(frame.file, foreign):
            shown = ", ".join(repr(one)[:80] for one in status)
            inside = IN_FIT if training_signs.place_of_fit else ""
            _exit_call = f"`sys.exit({shown})` at {frame}{inside}"
        original(*status)

    return leave


def exit_call() -> str:
    """Returns the last call of `sys.exit` in the user's code, and its place.

    "": there was none. It may have been caught.
    """
    return _exit_call


def _note(reason: str) -> None:
    core = sys.modules.get("hvd_keras._core")
    if core is not None and os.getpid() == _pid:  # not in a forked child
        core.note_exit_reason(reason)


def _goes_on_after_exceptions() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


# JAX raises these for the errors of a program.
_OF_XLA = ("JaxRuntimeError", "XlaRuntimeError")


def describe(kind: type[BaseException], value: BaseException) -> str:
    ours = error_in(str(value)) if kind.__name__ in _OF_XLA else None
    if ours is not None:
        kind, value = type(ours), ours
    name, lines = kind.__name__, str(value).strip().splitlines()
    if name in exceptions.__all__ and not issubclass(kind, exceptions.HvdError):
        name = f"{kind.__module__.partition('.')[0]}.{name}"  # not ours
    return f"{name}: {_gist(lines)[:500]}" if lines else name


def _gist(lines: list[str]) -> str:
    # A function of the user's that a kernel has called: its stack, its error.
    if any(map(_STACK.fullmatch, lines)):
        calls = [n for n, line in enumerate(lines) if _STACK_CALL.match(line)]
        for line in lines[max(calls, default=0) :]:
            if _ERROR.match(line):
                return line
    # In a graph, TensorFlow puts the stack before a kernel's text and the node
    # after it. In eager mode, it wraps the text in names.
    if lines[0] == "Graph execution error:":
        for number, line in enumerate(lines):
            if "[[{{node " in line and number > 0:
                return lines[number - 1]
    if lines[0].strip() == "in user code:":  # AutoGraph: calls, then the error
        calls = [n for n, line in enumerate(lines) if _CALL.match(line)]
        for n in range(max(calls, default=0), len(lines)):
            if found := _OF_AUTOGRAPH.match(lines[n]):
                return _gist([lines[n][found.end() :], *lines[n + 1 :]])
    gist = _EAGER_WRAPPING.sub("", lines[0])
    # Keras names the layer in a line of its own, and makes the next one bold.
    layer = re.match(r"Exception encountered when calling (.+?)\.?$", gist)
    told = [line for line in lines[1:] if line.strip()]
    if layer is None or not told:
        return gist
    if told[0].endswith("Error encountered:") and len(told) > 1:
        told = told[1:]  # what the layer's own code has raised
    return f"{_BOLD.sub('', told[0]).strip()} (in {layer[1]})"
