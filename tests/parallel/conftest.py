"""Fixtures for tests of TensorFlow's ops and of Keras on TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
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

import hvd_keras as hvd

tf.config.threading.set_inter_op_parallelism_threads(2)


def _disable_autotuning() -> None:
    """Keeps tf.data from tuning its threads.

    The tuner may overlook that an iterator is being deleted. The deletion then
    waits for the tuner's next turn, which doubles the run time (TF 2.21, in a
    third of all deletions).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda self: iterate(self.with_options(options))


_disable_autotuning()

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
    """Starts a new job with a set of the even ranks and one of the odd ranks.

    Yields the sets by name: "global", "even", and "parity", which is the one of
    the two that has this rank. On one rank each name is the global set.
    """
    rank, size = hvd.rank(), hvd.size()  # noqa: F811 (the fixtures)
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
    """Gives the set of all ranks, and the set of this rank's parity."""
    return sets[request.param]


@pytest.fixture
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lets ranks keep indexes of files in a folder of the test's own."""
    own = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", hvd.broadcast_object(str(own)))
