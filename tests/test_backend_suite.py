"""Runs tests/backends on two ranks, with Keras on JAX and on torch.

Some run on two hosts, too: those for any number of ranks with two ranks each.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Iterator

import pytest
from clean_environ import QUICK_XLA_FLAGS
from test_parallel_suite import Job, case

DIRECTORY = pathlib.Path(__file__).parent / "backends"
FILES = sorted(path.name for path in DIRECTORY.glob("test_*.py"))
ALL = {
    backend: [file for file in FILES if not file.startswith(f"test_{other}_")]
    for backend, other in (("jax", "torch"), ("torch", "jax"))
}
TRAINING = [
    "test_equality.py::test_training_equals_one_process",
    "test_equality.py::test_ranks_may_compile_different_programs",
    "test_join.py",
]
ON_HOSTS = {
    ("jax", "2x1"): ["test_jax_collectives.py"],
    ("jax", "2x2"): TRAINING,
    ("torch", "2x1"): ["test_torch_collectives.py"],
    ("torch", "2x2"): TRAINING,
}
# JAX compiles most of a minute for each, and TensorFlow runs them too.
SLOW_ON_JAX = {"test_global_batches.py", "test_local_updates.py"}


def is_thorough(backend: str, file: str) -> bool:
    return backend == "jax" and file in SLOW_ON_JAX


CASES = [
    case(backend, 2, file, is_thorough=is_thorough(backend, file))
    for backend, files in ALL.items()
    for file in files
]
CASES += [
    case(backend, ranks, file, is_thorough=True)
    for (backend, ranks), files in ON_HOSTS.items()
    for file in files
]
SETTINGS = {"jax": {"XLA_FLAGS": QUICK_XLA_FLAGS}}


Jobs = dict[tuple[str, int | str], Job]


@pytest.fixture(scope="module")
def jobs(note_job: Callable[[str, Job], None]) -> Iterator[Jobs]:
    jobs: Jobs = {}
    yield jobs
    for (backend, ranks), job in jobs.items():
        note_job(f"tests/backends, {backend}, {ranks} ranks", job)


@pytest.mark.parametrize(("backend", "ranks", "file"), CASES)
def test_backend(
    jobs: Jobs,
    backend: str,
    ranks: int | str,
    file: str,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    key = backend, ranks
    if key not in jobs:
        on_hosts = isinstance(ranks, str)
        thorough = pytestconfig.getoption("thorough") and not on_hosts
        files = ON_HOSTS[key] if on_hosts else ALL[backend]
        if not (on_hosts or thorough):
            files = [name for name in files if not is_thorough(backend, name)]
        directory = tmp_path_factory.mktemp(backend)
        settings = {"KERAS_BACKEND": backend, **SETTINGS.get(backend, {})}
        jobs[key] = Job(
            ranks,
            [f"{DIRECTORY}/{name}" for name in files],
            directory,
            thorough=thorough,
            **settings,
        )
        jobs[key].wait()
    failures = jobs[key].failures(file)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
