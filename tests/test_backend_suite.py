"""Runs tests/backends on two ranks, with Keras on JAX and on torch."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Iterator

import pytest
from test_parallel_suite import Job

DIRECTORY = pathlib.Path(__file__).parent / "backends"
FILES = sorted(path.name for path in DIRECTORY.glob("test_*.py"))
CASES = [
    (backend, file)
    for backend, other in (("jax", "torch"), ("torch", "jax"))
    for file in FILES
    if not file.startswith(f"test_{other}_")
]
# Compiling takes most of the time; the programs run for moments.
SETTINGS = {"jax": {"XLA_FLAGS": "--xla_backend_optimization_level=0"}}


@pytest.fixture(scope="module")
def jobs(note_job: Callable[[str, Job], None]) -> Iterator[dict[str, Job]]:
    jobs: dict[str, Job] = {}
    yield jobs
    for backend, job in jobs.items():
        note_job(f"tests/backends, {backend}", job)


@pytest.mark.parametrize(("backend", "file"), CASES)
def test_backend(
    jobs: dict[str, Job],
    backend: str,
    file: str,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if backend not in jobs:
        files = [f"{DIRECTORY}/{name}" for b, name in CASES if b == backend]
        directory = tmp_path_factory.mktemp(backend)
        settings = {"KERAS_BACKEND": backend, **SETTINGS.get(backend, {})}
        thorough = pytestconfig.getoption("thorough")
        jobs[backend] = Job(2, files, directory, thorough=thorough, **settings)
        jobs[backend].wait()
    failures = jobs[backend].failures(file)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
