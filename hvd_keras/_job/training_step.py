"""Tells the engine which step of training this process is in."""

from __future__ import annotations

from hvd_keras import _native

UNKNOWN = 0


def tell(step: int) -> None:
    """Sets the step that later reductions of gradients belong to.

    Args:
        step: From 1 on, the same on all ranks; `UNKNOWN` agrees with all.
    """
    _native.core().set_training_step(step)
