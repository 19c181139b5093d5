"""Errors of programs that XLA runs, as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from hvd_keras._common.error_text import error_in


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """A context in which errors of collectives in programs are of our types.

    JAX raises what a program has failed with where its results are waited for,
    which must be inside: call `jax.block_until_ready` on them.

    Raises:
        HvdError: In place of a `jax.errors.JaxRuntimeError` that a collective
            has caused, which is its `__cause__`.

    Example:

    >>> with hvd_keras.jax.typed_errors():
    ...     state = jax.block_until_ready(step(state, batch))
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        ours = error_in(str(error))
        if ours is None:
            raise
        raise ours from error
