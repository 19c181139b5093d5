"""Errors whose names travel between a rank and the rendezvous server."""

from __future__ import annotations

from hvd_keras import exceptions
from hvd_keras.exceptions import HvdError, InternalError, PeerLostError


class JobEndedError(PeerLostError):
    """An elastic job cannot go on here: no later generation will do."""


def error_class(name: str) -> type[HvdError]:
    """Returns the error of that name; InternalError if there is none."""
    if name == JobEndedError.__name__:
        return JobEndedError
    found = getattr(exceptions, name, None)
    if isinstance(found, type) and issubclass(found, HvdError):
        return found
    return InternalError
