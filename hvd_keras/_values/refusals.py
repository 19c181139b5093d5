"""Tells the other ranks of a call that is wrong on this rank alone.

They wait for this rank under the name of the call. The error here would leave
them waiting.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hvd_keras import _native
from hvd_keras._job import state
from hvd_keras.exceptions import HvdError
from hvd_keras.process_set import ProcessSet

Function = TypeVar("Function", bound=Callable[..., Any])


# The kind of a collective, the name that pairs it across ranks, who takes part.
Call = tuple[str, str, ProcessSet]

# Instead of a name: all calls of a program that could not be built.
WHOLE_PROGRAM = ""


class _Prepared(threading.local):
    """The call that this thread prepares and has not yet submitted."""

    call: Callable[[], Call | None] | None = None


_prepared = _Prepared()


def refuse(
    kind: str, name: str, process_set: ProcessSet, error: Exception
) -> None:
    """Fails a call on the other ranks, if any can wait for it.

    Args:
        kind: The collective.
        name: Pairs the call across ranks.
        process_set: The ranks that take part.
        error: Why this rank cannot.
    """
    job = state.job()
    if job is None or not isinstance(process_set, ProcessSet):
        return
    ranks = process_set.ranks or []
    set_id = process_set.process_set_id
    if set_id is None or len(ranks) == 1 or job.topology.rank not in ranks:
        return
    text = str(error)
    if not isinstance(error, HvdError):
        text = f"{type(error).__name__}: {text}"
    _native.core().refuse(kind.removeprefix("grouped_"), name, set_id, text)


@contextlib.contextmanager
def told(kind: str, name: str, process_set: ProcessSet) -> Iterator[None]:
    """Refuses a call if what this encloses raises: checks before the call."""
    try:
        yield
    except Exception as error:
        refuse(kind, name, process_set, error)
        raise


def prepare(call: Callable[[], Call | None]) -> None:
    """Notes that this thread prepares a call, which `call()` describes."""
    _prepared.call = call


def submit() -> None:
    """Notes that it makes the call: from now on the engine tells of errors."""
    _prepared.call = None


def run(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    call: Callable[[], Call | None] | None = None,
) -> Any:
    """Runs a function that prepares a call and submits it, or refuses it.

    Args:
        function: What runs.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        call: Describes the call. None: the function tells it to `prepare`.
    """
    _prepared.call = call
    try:
        return function(*args, **kwargs)
    except Exception as error:
        prepared = _prepared.call
        submit()
        refused = None if prepared is None else prepared()
        if refused is not None:
            refuse(*refused, error)
        raise


def refuses(function: Function) -> Function:
    """Decorates such a function."""

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        return run(function, args, kwargs)

    return refusing  # type: ignore[return-value]
