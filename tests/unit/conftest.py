"""A job of one rank for a test, and none for the test after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def _job() -> Iterator[None]:
    # Most of these tests need no libraries of the job.
    import hvd_keras as hvd

    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _no_job_is_left() -> Iterator[None]:
    yield
    hvd = sys.modules.get("hvd_keras")
    if hvd is not None and hvd.is_initialized():
        hvd.shutdown()
        pytest.fail("The test leaves a job: use the fixture `_job`.")
