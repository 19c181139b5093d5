"""The texts of errors: those that XLA passes on, and what they are about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvd_keras import exceptions

# What `ToFfiError` in tf_ops/xla/ffi_request.cc writes: nothing but the text
# of an error comes through XLA.
MARK = re.compile(r"hvd_keras\.exceptions\.(\w+)Error: ")


# What a collective is about, by its name; for those that do not say it.
_subjects: dict[str, str] = {}


def note_gradients(name: str, paths: Sequence[str]) -> None:
    """Notes the variables whose gradients the collective `name` reduces."""
    shown = ", ".join(map(repr, paths[:3]))
    if len(paths) > 3:
        shown += f" and {len(paths) - 3} more"
    _subjects[name] = f"the gradient of {shown}"


def with_subject(text: str) -> str:
    """Returns the text of an error that says what its collective is about."""
    for name, subject in list(_subjects.items()):  # other threads may add some
        added = f" ('{name}' is {subject} on this rank)"
        if f"'{name}'" in text and added not in text:
            text += added
    return text


def error_in(text: str) -> exceptions.HvdError | None:
    """Returns the error that a handler of ours told XLA, if there is one."""
    match = MARK.search(text)
    if match is None:
        return None
    found = getattr(exceptions, f"{match[1]}Error", exceptions.InternalError)
    error: exceptions.HvdError = found(with_subject(text[match.end() :]))
    return error
