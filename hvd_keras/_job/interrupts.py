"""Answers Ctrl-C while a framework waits for a collective.

Python runs the handler of a signal when the main thread next runs Python. A
framework that waits for its op does not return to Python. So if the main thread
stays where it is after SIGINT, and a collective is pending, this rank leaves
the job. Then the collective fails, the op returns, and Python raises
KeyboardInterrupt.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from hvd_keras import _native

_PATIENCE_SECONDS = 0.25
_LEAVING_SECONDS = 5.0
# Here TensorFlow makes the error of an op, called from C++.
_MAKING_ERRORS = (
    "/tensorflow/python/eager/core.py",
    "/tensorflow/python/framework/errors_impl.py",
    "/hvd_keras/ops/_errors.py",
)
_writer: int | None = None  # the wakeup descriptor of signals, if it is ours
_leaving = threading.Lock()  # held while this rank leaves


def watch(leave: Callable[[], None]) -> None:
    """Watches for SIGINT until `unwatch()`, if Python's own handler is set.

    Python writes the numbers of signals to one descriptor. Another user of it,
    such as an event loop, keeps it. Only the main thread can set it.

    Args:
        leave: Called in another thread to make this rank leave the job.
    """
    global _writer
    unwatch()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    other = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if other != -1:
        signal.set_wakeup_fd(other)
        os.close(reader)
        os.close(writer)
        return
    signal.signal(signal.SIGINT, _interrupt)
    _writer = writer
    # Not a threading.Thread: programs may wait for all of those.
    _thread.start_new_thread(_run, (reader, leave))


def unwatch() -> None:
    """Ends what `watch` has begun. Only the main thread can."""
    global _writer
    if (
        _writer is None
        or threading.current_thread() is not threading.main_thread()
    ):
        return
    other = signal.set_wakeup_fd(-1)
    if other not in (-1, _writer):
        signal.set_wakeup_fd(other)
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(_writer)  # ends the thread
    _writer = None


def finish() -> None:
    """Waits until a thread that makes this rank leave has done so."""
    if _leaving.acquire(timeout=_LEAVING_SECONDS):
        _leaving.release()


# Signals to a forked child are not for this process.
os.register_at_fork(after_in_child=unwatch)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but not while TensorFlow makes an error.

    TensorFlow would replace the exception by a RuntimeError.
    """
    while frame is not None and not _makes_error(frame):
        frame = frame.f_back
    while frame is not None and _makes_error(frame):
        frame = frame.f_back
    if frame is None or sys.gettrace() is not None:
        raise KeyboardInterrupt
    # Raise it where the op was called, as soon as the error gets there.
    frame.f_trace = _raise_now
    sys.settrace(lambda *event: None)


def _makes_error(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_MAKING_ERRORS)


def _raise_now(frame: FrameType, event: str, argument: object) -> None:
    sys.settrace(None)
    frame.f_trace = None
    raise KeyboardInterrupt


def _run(reader: int, leave: Callable[[], None]) -> None:
    with open(reader, "rb", buffering=0) as signals:
        while numbers := signals.read(64):
            if signal.SIGINT not in numbers or not _stays_blocked():
                continue
            with _leaving:
                leave()


def _stays_blocked() -> bool:
    # A handler of the user may not want an end.
    if signal.getsignal(signal.SIGINT) is not _interrupt:
        return False
    place = _place_of_main_thread()
    time.sleep(_PATIENCE_SECONDS)
    if place != _place_of_main_thread():
        return False
    return bool(_native.core().num_pending())


def _place_of_main_thread() -> tuple[int, int] | None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (id(frame), frame.f_lasti)
