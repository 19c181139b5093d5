"""Tests of collectives on GPUs; they need no TensorFlow.

`make gpu-check` runs them in jobs of 1, 2 and 4 ranks on real GPUs,
`tests/test_gpu_suite.py` on the fake of tests/gpu/fake.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
from devices import Device, open_device, prepare_to_share

import hvd_keras as hvd
from hvd_keras import _native

DEADLINE_SECONDS = 120


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> None:
    """Prints which GPUs, CUDA and NCCL the tests ran on."""
    core = _native.core()
    if hvd.cuda_built() and hvd.nccl_built():
        terminalreporter.write_line(
            f"{core.gpu_count()} GPUs, CUDA {core.gpu_cuda_version()}, NCCL "
            f"{core.gpu_nccl_version()}"
        )


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    prepare_to_share(os.environ)
    hvd.init()
    opened = open_device(hvd.local_rank())
    if opened is None:
        pytest.skip("no GPU here")
    yield opened
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _deadline_and_meeting(request: pytest.FixtureRequest) -> Iterator[None]:
    faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
    yield
    if hvd.is_initialized():
        _native.core().barrier(f"after {request.node.nodeid}")
    faulthandler.cancel_dump_traceback_later()
