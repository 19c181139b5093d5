"""Reads errors that XLA passes on, and adds what a collective is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvd_keras import exceptions
from hvd_keras._common.training_signs import CURE_OF_MODELS

# `ToFfiError` in tf_ops/xla/ffi_request.cc writes this, because XLA passes on
# only the text of an error.
MARK = re.compile(r"hvd_keras\.exceptions\.(\w+)Error: ")


# What collectives are about, by name, if their names do not say it.
_subjects: dict[str, str] = {}


def note_gradients(name: str, paths: Sequence[str]) -> None:
    """Notes the variables whose gradients the collective `name` reduces."""
    shown = ", ".join(map(repr, paths[:3]))
    if len(paths) > 3:
        shown += f" and {len(paths) - 3} more"
    _subjects[name] = f"the gradient of {shown}"


def with_subject(text: str) -> str:
    """Returns an error's text; adds what its collective is about, if known."""
    for name, subject in list(_subjects.items()):  # other threads may add some
        added = f" ('{name}' is {subject} on this rank)"
        if f"'{name}'" in text and added not in text:
            text += added
    return text


def error_in(text: str) -> exceptions.HvdError | None:
    """Returns the error that one of our handlers told XLA, if any."""
    match = MARK.search(text)
    if match is None:
        return None
    found = getattr(exceptions, f"{match[1]}Error", exceptions.InternalError)
    told = text[match.end() :]
    known = with_subject(told)
    if known != told and "ranks disagree on the shape" in known:
        known += f". {CURE_OF_MODELS}"
    error: exceptions.HvdError = found(known)
    return error
