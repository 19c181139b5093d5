"""Stand-ins for what Horovod has and hvd_keras has not: they raise on use."""

from __future__ import annotations

from typing import Any, NoReturn


def missing(name: str, remedy: str) -> type:
    """A class that stands for a class, a function or a decorator.

    It can be imported; to call it or to derive from it raises, so that a
    program which never gets there runs.

    Args:
        name: Its name in Horovod.
        remedy: What to do instead, as the end of a sentence.
    """

    def refuse(*args: Any, **kw: Any) -> NoReturn:
        raise NotImplementedError(
            f"hvd_keras has no `{name}` of Horovod's: {remedy}."
        )

    return type(
        name,
        (),
        {
            "__new__": refuse,
            "__init_subclass__": classmethod(refuse),
            "__doc__": f"Not there: {remedy}.",
        },
    )
