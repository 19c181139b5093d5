"""Tries the wheels in dist/ with other versions, and notes what passed.

    python tools/test_matrix.py                                  # all of them
    python tools/test_matrix.py '3.12 tensorflow-cpu==2.20.0 keras==3.10.0'
    python tools/test_matrix.py '3.11 tensorflow-cpu==2.21.0 ~/clones/keras'

An argument is a combination: a version of Python, then what pip is to install,
a clone of Keras for example. Each has its virtual environment in build/matrix
(0.8 GB, with torch from PyPI more). There the smoke test and a part of the
tests run on 2 ranks, with the backend of the first package. Each result
replaces its row of the table in docs/versions.md; the other rows stay.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from build_wheels import find_python
from extra_venv import make_venv, run

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / "build" / "matrix"
_PAGE = _ROOT / "docs" / "versions.md"
_HEAD = (
    "| Python | With | Keras | NumPy | Smoke test | Tests |\n"
    "|---|---|---|---|---|---|\n"
)
_SECONDS = 1200

# What tells the backends apart: the smoke test, and tests for 2 ranks.
_PARTS = {
    "tensorflow": (
        "tools/smoke_test.py",
        [
            "tests/parallel/test_allreduce.py",
            "tests/parallel/test_broadcast_callback.py",
            "tests/parallel/test_gradients.py",
            "tests/parallel/test_keras_optimizer.py",
            "tests/parallel/test_metric_average.py",
            "tests/parallel/test_xla_training.py",
        ],
    ),
    "jax": (
        "tools/smoke_test_jax.py",
        [
            "tests/backends/test_callbacks.py",
            "tests/backends/test_equality.py",
            "tests/backends/test_jax_collectives.py",
        ],
    ),
    "torch": (
        None,
        [
            "tests/backends/test_callbacks.py",
            "tests/backends/test_equality.py",
            "tests/backends/test_torch_collectives.py",
            "tests/backends/test_torch_distributed.py",
        ],
    ),
}
_LABELS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
# The private names of Keras and TensorFlow that we use; on one process.
_NAMES = ["tests/unit/test_keras_private.py",
          "tests/unit/test_tensorflow_private.py"]  # fmt: skip

# Each Python with each TensorFlow that has wheels for it, and each TensorFlow
# with Kerases that it accepts (2.20 wants 3.10, 2.21 wants 3.12); JAX and torch
# with the oldest and newest.
_TENSORFLOW = {
    "2.18.1": {"3.10": "3.8.0", "3.11": "3.10.0", "3.12": "3.12.4"},
    "2.19.1": {"3.10": "3.10.0", "3.11": "3.12.4", "3.12": "3.8.0"},
    "2.20.0": {"3.10": "3.12.4", "3.11": "3.10.0", "3.12": "3.10.0",
               "3.13": "3.15.1"},
    "2.21.0": {"3.10": "3.12.4", "3.11": "3.15.1", "3.12": "3.12.4",
               "3.13": "3.12.4"},
}  # fmt: skip
ALL = [
    *(
        f"{python} tensorflow-cpu=={tensorflow} keras=={keras}"
        for tensorflow, kerases in _TENSORFLOW.items()
        for python, keras in kerases.items()
    ),
    *(
        f"{python} tensorflow-cpu=={tensorflow} keras==3.15.1"
        for python, tensorflow in [("3.11", "2.18.1"), ("3.12", "2.19.1")]
    ),
    *("3.11 jax==0.7.2 keras==3.10.0", "3.13 jax keras==3.15.1"),
    *("3.10 torch==2.6.0 keras==3.8.0", "3.13 torch keras==3.15.1"),
]


def try_combination(combination: str) -> str:
    """Returns the row of the table for a combination."""
    words = shlex.split(combination)
    version, packages = words[0], [os.path.expanduser(w) for w in words[1:]]
    name = re.sub(r"[^\w.]+", "-", combination).strip("-")
    log = _FOLDER / f"{name}.log"
    log.write_text("")
    wheel = _wheel(version)
    try:
        needed = ["pytest>=7.4,<9.2", str(wheel), *packages]
        programs = make_venv(_FOLDER / name, needed, find_python(version))
    except RuntimeError as error:
        log.write_text(str(error))
        return _row(version, " ".join(packages), "", "", "pip found no way", "")
    # The same environment may have an older wheel.
    run(programs / "pip", "install", "-q", "--no-deps", "--force-reinstall",
        wheel)  # fmt: skip

    distribution = re.split(r"[=<>@ ]", packages[0])[0]
    backend = distribution.removesuffix("-cpu")
    trial = _Trial(programs, backend, log)
    return _row(
        version,
        f"{_LABELS[backend]} {trial.version_of(distribution)}",
        trial.version_of("keras"),
        trial.version_of("numpy"),
        trial.smoke_test(),
        trial.tests(),
    )


def _wheel(version: str) -> Path:
    """Returns the wheel in dist/ for a Python, on this machine."""
    abi = f"cp{version.replace('.', '')}"
    pattern = f"hvd_keras-*-{abi}-{abi}-*_{os.uname().machine}.whl"
    found = list((_ROOT / "dist").glob(pattern))
    if len(found) != 1:
        sys.exit(
            f"dist/ must hold one wheel {pattern}. Received: {len(found)}. "
            "`make wheels` builds it."
        )
    return found[0]


class _Trial:
    """Runs commands in a virtual environment, and notes their output."""

    def __init__(self, programs: Path, backend: str, log: Path) -> None:
        self._programs = programs
        self._log = log
        self._environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        # The wheel is tried, not the sources.
        self._environment.pop("PYTHONPATH", None)
        self._smoke_test, self._tests = _PARTS[backend]
        self._has_names = backend == "tensorflow"
        self._python = programs / "python"
        self._job: list[str | Path]
        self._job = [programs / "hvdrun", "-np", "2", "--", self._python]
        self._pytest: list[str | Path]
        self._pytest = [programs / "pytest", "-q", "-W", "ignore",
                        "-p", "no:cacheprovider"]  # fmt: skip

    def version_of(self, distribution: str) -> str:
        code = (
            "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
        )
        return subprocess.run(
            [self._python, "-c", code, distribution],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def smoke_test(self) -> str:
        if self._smoke_test is None:
            return ""
        return self._attempt(*self._job, _ROOT / self._smoke_test)

    def tests(self) -> str:
        files = [_ROOT / test for test in self._tests]
        result = self._attempt(*self._job, *self._pytest, *files)
        if self._has_names:
            files = [_ROOT / test for test in _NAMES]
            names = self._attempt(self._python, *self._pytest, *files)
            result = f"{result}; {names}"
        return result

    def _attempt(self, *command: str | Path) -> str:
        """Returns "passed", or what pytest has counted."""
        words = list(map(str, command))
        with self._log.open("a") as file:
            file.write(f"$ {shlex.join(words)}\n")
            file.flush()
            start = file.tell()
            done = subprocess.run(
                words,
                cwd=self._programs.parent,  # has no sources
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            )
        output = self._log.read_bytes()[start:].decode(errors="replace")
        counted = re.findall(r"\d+ (?:passed|failed|errors?)\b", output)
        if done.returncode:
            return ", ".join(["FAILED", *counted[-2:]])
        return counted[-1] if counted else "passed"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def write_row(row: str) -> None:
    """Puts a row into the page, in the place of one with the same versions."""

    def key(row: str) -> str:
        return "|".join(row.split("|")[1:4])

    before, table = _PAGE.read_text().split(_HEAD)
    rows = [old for old in table.splitlines() if key(old) != key(row)]
    _PAGE.write_text(before + _HEAD + "\n".join(sorted([*rows, row])) + "\n")


def main() -> int:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    failed = False
    for combination in sys.argv[1:] or ALL:
        row = try_combination(combination)
        print(row, flush=True)
        write_row(row)
        failed |= "FAILED" in row
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
