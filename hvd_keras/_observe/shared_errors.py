"""Errors that all ranks raise together, so that none of them is at fault."""

from __future__ import annotations

from collections.abc import Collection

# `MismatchError` and what derives from it.
CLASSES = ("MismatchError", "ProcessSetMismatchError")


def shared_error(errors: Collection[str]) -> str:
    """Returns the error that ranks have in common; "": there is none.

    Args:
        errors: What each rank has told: a class, a colon and a text.
    """
    first = next(iter(errors), "")
    is_shared = first.partition(":")[0] in CLASSES
    return first if is_shared and len(set(errors)) == 1 else ""
