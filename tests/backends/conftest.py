"""Hooks of the tests that run on every rank, with Keras on JAX or torch."""

from __future__ import annotations

import keras
import pytest
from rank_hooks import (  # noqa: F401
    _deadline,
    _ranks_meet,
    bucket_of_each,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_deselected,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_unconfigure,
    rank,
    size,
)


@pytest.fixture(autouse=True)
def _memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes JAX's steps reuse the memory of small arrays too."""
    if keras.backend.backend() == "jax":
        from hvd_keras._keras import jax as keras_jax

        monkeypatch.setattr(keras_jax, "_LARGE_BYTES", 100)
