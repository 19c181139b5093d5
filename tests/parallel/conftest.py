"""What the tests that run on every rank of a job share.

Each rank runs the same tests in the same order and meets the others between
them, so that one failed test does not hang the next. A test that hangs ends the
job, with the stacks of all ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

DEADLINE_SECONDS = 240  # several stalls, of ranks whose peer has failed
# Where `test_parallel_suite.py` wants one file of results a rank.
REPORT_DIR = os.environ.get("PARALLEL_REPORT_DIR")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "deadline(seconds): how long the test may take"
    )
    config.addinivalue_line(
        "markers", "ranks(*numbers): the only numbers of ranks it runs on"
    )
    # pytest captures file descriptor 2 while a test runs.
    stderr = os.dup(2)
    config.stash[STDERR] = stderr
    # The launcher ends the other ranks with SIGTERM: where were they?
    faulthandler.register(signal.SIGTERM, file=stderr, chain=True)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("ranks"):
            if hvd.size() not in marker.args:
                reason = f"on {marker.args} ranks only"
                item.add_marker(pytest.mark.skip(reason=reason))


STDERR = pytest.StashKey[int]()


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.unregister(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("deadline")
    seconds = marker.args[0] if marker else DEADLINE_SECONDS
    faulthandler.dump_traceback_later(
        seconds, exit=True, file=request.config.stash[STDERR]
    )
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _ranks_meet(request: pytest.FixtureRequest, _deadline: None) -> Iterator:
    yield
    # A rank that failed comes early, and waits for those that still wait for it
    # in the test: for longer than a stall.
    for _ in range(3):
        with contextlib.suppress(hvd.StalledError):
            hvd.allreduce(0.0, name=f"after {request.node.nodeid}")
            return
    pytest.exit(f"The ranks did not meet after {request.node.nodeid}", 1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if REPORT_DIR is None or (report.when != "call" and report.passed):
        return
    entry = {
        "file": pathlib.Path(report.fspath).name,
        "test": report.nodeid.split("::", 1)[-1],
        "outcome": report.outcome,
        "text": report.longreprtext if report.failed else "",
    }
    _append_report(entry)


def pytest_sessionfinish() -> None:
    if REPORT_DIR is not None:
        _append_report({"outcome": "finished"})


def _append_report(entry: dict[str, str]) -> None:
    # Of the launcher: a test may have ended without a job.
    rank = os.environ.get("HVD_RANK", "0")
    path = pathlib.Path(REPORT_DIR or "") / f"rank_{rank}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


Run = Callable[..., Any]


def run_eagerly(function: Callable[..., Any], *arrays: Any) -> Any:
    outputs = function(*(tf.constant(array) for array in arrays))
    return tf.nest.map_structure(_to_numpy, outputs)


def run_in_function(function: Callable[..., Any], *arrays: Any) -> Any:
    compiled = tf.function(function, autograph=False)
    outputs = compiled(*(tf.constant(array) for array in arrays))
    return tf.nest.map_structure(_to_numpy, outputs)


def run_in_graph(function: Callable[..., Any], *arrays: Any) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [
            tf.compat.v1.placeholder(array.dtype, array.shape)
            for array in map(np.asarray, arrays)
        ]
        outputs = function(*inputs)
        return session.run(outputs, dict(zip(inputs, arrays, strict=True)))


def _to_numpy(tensor: Any) -> Any:
    return tensor.numpy() if isinstance(tensor, tf.Tensor) else tensor


@pytest.fixture(
    params=[run_eagerly, run_in_function, run_in_graph],
    ids=["eager", "function", "graph"],
)
def run(request: pytest.FixtureRequest) -> Run:
    """Calls a function of tensors with arrays and returns arrays."""
    return request.param


@contextlib.contextmanager
def parity_sets() -> Iterator[dict[str, hvd.ProcessSet]]:
    """A job anew, with a set of the even ranks and one of the odd ones.

    Yields the sets by name: "global", "even", and "parity" for that of the two
    which this rank is in; on one rank all of them are all ranks.
    """
    rank, size = hvd.rank(), hvd.size()
    sets = [hvd.ProcessSet(range(i, size, 2)) for i in range(2) if size > 1]
    hvd.shutdown()
    hvd.init(process_sets=sets)
    own = sets[rank % 2] if sets else hvd.global_process_set
    even = sets[0] if sets else hvd.global_process_set
    yield {"global": hvd.global_process_set, "even": even, "parity": own}
    hvd.shutdown()
    hvd.init()


@pytest.fixture(scope="module")
def sets() -> Iterator[dict[str, hvd.ProcessSet]]:
    with parity_sets() as made:
        yield made


@pytest.fixture(params=["global", "parity"])
def process_set(
    sets: dict[str, hvd.ProcessSet], request: pytest.FixtureRequest
) -> hvd.ProcessSet:
    """All ranks, and half of them."""
    return sets[request.param]


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()
