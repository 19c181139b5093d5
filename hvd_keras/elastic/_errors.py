"""Tells why a call failed: because the members changed, or otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_keras._common import log
from hvd_keras._common.error_text import error_in
from hvd_keras._job import membership
from hvd_keras._job.exit_hooks import describe
from hvd_keras.exceptions import PeerLostError, ShutdownError


class ChangeDueError(Exception):
    """All ranks have a commit and shall form a new membership."""


def goes_on_after(error: BaseException) -> bool:
    """Whether a new membership begins because of an error; says so."""
    if not membership.is_elastic() or not is_change(error):
        return False
    log.info(f"a new membership begins: {describe(type(error), error)}")
    return True


def is_change(error: BaseException) -> bool:
    """Whether an error comes of a change of the members.

    It may be wrapped by a framework, or raised while it was handled.
    """
    return any(
        isinstance(each, ChangeDueError | PeerLostError | ShutdownError)
        for each in _with_causes(error)
    )


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
