"""`make ray-check` runs these tests, in an environment that has Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.train")  # `tests/ray` looks like a module `ray`
import ray

_ROOT = Path(__file__).parents[2]
# Ray gives its workers a niceness of 15. On a busy machine the ranks would get
# nearly nothing, and run into the deadlines for late ranks.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session", autouse=True)
def _cluster() -> Iterator[None]:
    here = str(Path(__file__).parent)
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "examples"), here])
    ray.init(
        num_cpus=6,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()
