"""Ranks of `ElasticRayExecutor` die and come; the others stay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from elastic_training import noted, train

import hvd_keras as hvd
from hvd_keras.ray import ElasticRayExecutor

_HERE = Path(__file__).parent
_LIMIT_SECONDS = 180.0


@pytest.fixture
def executor() -> Iterator[ElasticRayExecutor]:
    free = ray.available_resources()["CPU"]
    made = ElasticRayExecutor(
        ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2),
        env_vars={"OUR_VARIABLE": "here"},
    )
    made.start()
    _wait(lambda: ray.available_resources().get("CPU") == free - 2)
    yield made
    made.shutdown()
    _wait(lambda: ray.available_resources().get("CPU") == free)


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_survivors_stay_when_a_rank_was_killed(
    executor: ElasticRayExecutor,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = executor.run(train, [str(tmp_path)], {"epochs": 12, "dies_at": 4})
    assert [(one["rank"], one["size"]) for one in found] == [(0, 2), (1, 2)]
    for one in found:
        assert one["val_accuracy"] >= 0.97
        assert not _runs(one["pid"])  # the job has ended
    steps = noted(tmp_path)
    assert len(steps) == 3  # the survivor, the killed one, and another
    death = float((tmp_path / "death").read_text())
    (survivor,) = (p for p, s in steps.items() if s[0][0] < death < s[-1][0])
    assert found[0]["pid"] == survivor
    sizes = [size for _, _, size in steps[survivor]]
    assert list(dict.fromkeys(sizes)) == [2, 1]
    assert sizes[0] == sizes[-1] == 2
    again = min(at for at, _, size in steps[survivor] if size == 1)
    grown = min(s[0][0] for s in steps.values() if s[0][0] > death)
    with capsys.disabled():
        print(
            f"\nafter SIGKILL the survivor trained again in "
            f"{again - death:.2f} s, two ranks in {grown - death:.1f} s"
        )


def _describe(factor: int) -> tuple[int, int, int, str]:
    hvd.init()
    return (
        hvd.rank(),
        hvd.size(),
        hvd.rank() * factor,
        os.environ["OUR_VARIABLE"],
    )


def _fail() -> None:
    hvd.init()
    raise ZeroDivisionError("here")


def test_results_and_errors_reach_the_caller(
    executor: ElasticRayExecutor,
) -> None:
    found = executor.run(_describe, [3])
    assert found == [(0, 2, 0, "here"), (1, 2, 3, "here")]
    with pytest.raises(hvd.RankError, match="ZeroDivisionError") as raised:
        executor.run(_fail)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "_fail" in raised.value.traceback


def test_the_program_of_the_page_runs() -> None:
    page = (_HERE.parents[1] / "docs" / "ray.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (code,) = (block for block in blocks if "ElasticRayExecutor" in block)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    assert len(names["accuracies"]) == 2
    assert min(names["accuracies"]) >= 0.97


def test_nodes_come_and_are_lost(tmp_path: Path) -> None:
    # It starts a cluster of its own, so it is a process of its own.
    environ = {**os.environ, "RAY_ADDRESS": ""}
    driver = [sys.executable, str(_HERE / "changing_nodes.py"), str(tmp_path)]
    done = subprocess.run(
        driver, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    ((pid, num_steps),) = found["results"]
    assert found["sizes"] == [1, 2, 1]  # of the process that was always there
    assert pid == found["pid"]
    # The one that was under way at most was done again.
    assert found["num_steps"] - num_steps in (0, 1)
    assert found["cpus"] == 0  # the shares of both nodes were held


def _sleep(folder: str) -> None:
    Path(folder, "pids").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(_LIMIT_SECONDS)


def test_nothing_is_left_when_the_driver_dies(tmp_path: Path) -> None:
    free = ray.available_resources()["CPU"]
    code = (
        "import ray, test_elastic_executor as test\n"
        f"ray.init(address={ray.get_runtime_context().gcs_address!r})\n"
        "settings = test.ElasticRayExecutor.create_settings(max_num_proc=1)\n"
        "executor = test.ElasticRayExecutor(settings)\n"
        "executor.start()\n"
        f"executor.run(test._sleep, [{str(tmp_path)!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=_HERE) as driver:
        pids = tmp_path / "pids"
        _wait(lambda: pids.exists() and bool(pids.read_text()))
        rank, agent = map(int, pids.read_text().split())
        children = Path(f"/proc/{driver.pid}/task").glob("*/children")
        hvdruns = [int(p) for c in children for p in c.read_text().split()]
        assert hvdruns
        driver.send_signal(signal.SIGKILL)
        _wait(lambda: not any(map(_runs, [rank, agent, *hvdruns])))
        _wait(lambda: ray.available_resources().get("CPU") == free)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="min_num_proc"):
        ElasticRayExecutor.create_settings(min_np=3, max_np=2)
    with pytest.raises(hvd.InvalidArgumentError, match="use_gpu"):
        ElasticRayExecutor(gpus_per_slot=1)
    with pytest.raises(hvd.LaunchError, match="start"):
        ElasticRayExecutor().run(os.getpid)
    crowd = ElasticRayExecutor({"timeout_s": 1, "min_num_proc": 1000})
    with pytest.raises(hvd.LaunchError, match="room for 1000 ranks"):
        crowd.start()
