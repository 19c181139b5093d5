"""The hooks of tests that run on every rank, with Keras on JAX or torch."""

from __future__ import annotations

from rank_hooks import (  # noqa: F401
    _deadline,
    _ranks_meet,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_unconfigure,
    rank,
    size,
)
