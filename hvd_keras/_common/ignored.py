"""Arguments of Horovod that mean nothing here: each says so once."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_told: set[tuple[str, str]] = set()


def ignoring(owner: str, names: str) -> Callable[[Function], Function]:
    """Returns a decorator for functions that take some arguments for nothing.

    Args:
        owner: Horovod's name of the function, for the message.
        names: The arguments. Those that the function does not have must come
            by name, and it does not get them.
    """
    ignored = names.split()

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        extra = set(ignored) - set(signature.parameters)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name, None) for name in extra}
            if len(extra) < len(ignored):
                given |= signature.bind_partial(*args, **kwargs).arguments
            for name in ignored:
                if given.get(name) not in (None, ""):
                    _tell(owner, name)
            return function(*args, **kwargs)

        call.ignored = ignored  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _tell(owner: str, name: str) -> None:
    if (owner, name) not in _told:
        _told.add((owner, name))
        logging.getLogger("hvd_keras").warning(
            "hvd_keras: `%s` ignores `%s`, which has no meaning here.",
            owner,
            name,
        )
