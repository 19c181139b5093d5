"""Stand-ins for names that hvd_keras lacks: they raise when they are used."""

from __future__ import annotations

from typing import Any, NoReturn


def missing(name: str, remedy: str) -> type:
    """Returns a class that stands for a class, a function or a decorator.

    It can be imported, so a program that never uses it runs. It raises if it is
    called or if a class derives from it.

    Args:
        name: Its name in Horovod.
        remedy: What to do instead, as the end of a sentence.
    """

    def refuse(*args: Any, **kw: Any) -> NoReturn:
        raise NotImplementedError(
            f"hvd_keras does not have Horovod's `{name}`: {remedy}."
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


def missing_module(name: str, remedy: str) -> ImportError:
    """Returns the error of importing a module that hvd_keras lacks.

    Args:
        name: Its name.
        remedy: What to do instead, as the end of a sentence.
    """
    return ImportError(
        f"hvd_keras, which stands for Horovod here, has no `{name}`: {remedy}.",
        name=name,
    )
