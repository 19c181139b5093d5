"""Tells why a call failed: because the members changed, or otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvd_keras._common import log
from hvd_keras._common.error_text import error_in
from hvd_keras._job import membership
from hvd_keras._job.exit_hooks import describe
from hvd_keras.exceptions import (
    PeerLostError,
    ShutdownError,
    StalledError,
)


class ChangeDueError(Exception):
    """All ranks have a commit and shall form a new membership."""


class Changes:
    """Says after which errors a training goes on with a new membership.

    A change of the members is one. So is a rank that does not come for a call,
    but not again before all ranks have done something together: a program may
    stall each time.
    """

    def __init__(self) -> None:
        self._may_stall = True

    def note_progress(self) -> None:
        """Notes that all ranks have done something together."""
        self._may_stall = True

    def begin_after(self, error: BaseException) -> bool:
        """Whether a new membership begins because of an error; says so."""
        if not membership.is_elastic():
            return False
        if not _comes_of(error, ChangeDueError | PeerLostError | ShutdownError):
            if not self._may_stall or not _comes_of(error, StalledError):
                return False
            self._may_stall = False
        log.info(f"a new membership begins: {describe(type(error), error)}")
        return True


def _comes_of(error: BaseException, kinds: Any) -> bool:
    """Whether an error is of these kinds, or comes of one.

    It may be wrapped by a framework, or raised while it was handled.
    """
    return any(isinstance(each, kinds) for each in _with_causes(error))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        # XLA passes on only the text.
        waiting += [error_in(str(each)), each.__cause__, each.__context__]
