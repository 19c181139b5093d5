"""Turns errors of programs that XLA runs into ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from hvd_keras._common.error_text import error_in


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """A context in which collectives in programs raise errors of our types.

    JAX raises the error of a program where somebody waits for its results. Wait
    inside the context: call `jax.block_until_ready` on the results.

    Raises:
        HvdError: A collective failed. The `jax.errors.JaxRuntimeError` that JAX
            raised is its `__cause__`.

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
