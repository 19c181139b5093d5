"""Keeps Keras from averaging over the ranks where hvd_keras does."""

from __future__ import annotations

from hvd_keras import _backends
from hvd_keras._keras import advice


def install() -> None:
    """Hooks into Keras. A second call does nothing."""
    _backends.current().keep_from_averaging(advice.any_reduces)
