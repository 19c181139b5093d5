"""Tells the engine which step of training this process is in."""

from __future__ import annotations

from hvd_keras import _native


def tell(fit: int, step: int, is_over: bool) -> None:
    """Sets the step that later collectives belong to.

    Args:
        fit: The number of the `fit`, from 0 on, in this process.
        step: From 1 on, the same on all ranks. 0 before the first.
        is_over: Whether it has ended, and the next one has not begun.
    """
    _native.core().set_training_step(fit << 32 | 2 * step + is_over)


def tell_position(epoch: int, batch: int) -> None:
    """Says which batch `fit` takes, from 1 on; (0, 0): it does not run."""
    _native.core().set_flight_position(epoch, batch)


def tell_unknown() -> None:
    """Lets later collectives belong to no step: they agree with all."""
    _native.core().set_training_step(0)
