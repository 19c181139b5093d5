"""`RayExecutor` has the methods of Horovod's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import ray

import hvd_keras as hvd
from hvd_keras.ray import RayExecutor


class _Counter:
    def __init__(self, start: int) -> None:
        self.value = start


@pytest.fixture
def executor() -> Iterator[RayExecutor]:
    made = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    made.start(
        _Counter, executable_args=[5], extra_env_vars={"OUR_VARIABLE": "here"}
    )
    yield made
    made.shutdown()


def _sum(value: int, *, times: int) -> list[float]:
    import numpy as np

    import hvd_keras as hvd
    from hvd_keras import _core

    hvd.init()
    tensors = [np.full(2, float(value * (hvd.rank() + 1)))]
    total = _core.allreduce("sum", tensors, 1)[0][0] * times
    hvd.shutdown()
    return [hvd_rank(), float(total)]


def hvd_rank() -> int:
    return int(os.environ["HVD_RANK"])


def test_functions_run_on_all_ranks(executor: RayExecutor) -> None:
    for _ in range(2):  # a second job in the same actors
        found = executor.run(_sum, [3], {"times": 10})
        assert found == [[0, 90.0], [1, 90.0]]
    refs = executor.run_remote(os.getenv, ["OUR_VARIABLE"])
    assert ray.get(refs) == ["here", "here"]


def test_execute_gets_the_object_of_each_rank(executor: RayExecutor) -> None:
    def add_rank(counter: _Counter) -> int:
        counter.value += int(os.environ["HVD_RANK"])
        return counter.value

    assert executor.execute(add_rank) == [5, 6]
    assert executor.execute_single(add_rank) == 5


def test_a_dead_rank_is_an_error(executor: RayExecutor) -> None:
    with pytest.raises(ray.exceptions.RayActorError):
        executor.run(os._exit, [1])


class _Fails:
    def __init__(self) -> None:
        raise ZeroDivisionError


def test_a_start_that_fails_leaves_nothing() -> None:
    free = ray.available_resources()["CPU"]
    executor = RayExecutor(num_workers=2)
    with pytest.raises(ray.exceptions.RayTaskError):
        executor.start(_Fails)
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != free:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(hvd.LaunchError, match="start"):
        executor.run(os.getpid)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="num_workers"):
        RayExecutor()
    with pytest.raises(hvd.LaunchError, match="start"):
        RayExecutor(num_workers=1).run(os.getpid)
    for elastic in ({"min_workers": 1}, {"max_workers": 2}):
        with pytest.raises(hvd.LaunchError, match="start"):
            RayExecutor(**elastic).run(os.getpid)
        with pytest.raises(NotImplementedError, match="`run_remote` needs"):
            RayExecutor(**elastic).run_remote(os.getpid)
        with pytest.raises(NotImplementedError, match="`execute_single`"):
            RayExecutor(**elastic).execute_single(print)
    with pytest.raises(hvd.InvalidArgumentError, match="min_num_proc"):
        RayExecutor(min_workers=3, max_workers=2)
    crowd = RayExecutor({"timeout_s": 1}, num_workers=1000)
    with pytest.raises(hvd.LaunchError, match="room for 1000 ranks"):
        crowd.start()
