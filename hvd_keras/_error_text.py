"""Our exceptions, out of the texts in which XLA passes errors on."""

from __future__ import annotations

import re

from hvd_keras import exceptions

# What `ToFfiError` in tf_ops/xla/ffi_request.cc writes: nothing but the text
# of an error comes through XLA.
MARK = re.compile(r"hvd_keras\.exceptions\.(\w+)Error: ")


def error_in(text: str) -> exceptions.HvdError | None:
    """Returns the error that a handler of ours told XLA, if there is one."""
    match = MARK.search(text)
    if match is None:
        return None
    found = getattr(exceptions, f"{match[1]}Error", exceptions.InternalError)
    error: exceptions.HvdError = found(text[match.end() :])
    return error
