from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import hvd_keras as hvd

_FALSE = [
    "ccl_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "rocm_built",
]


def printed_without_libraries(script: str) -> str:
    nowhere = {"HVD_CUDART_LIBRARY": "/none", "HVD_NCCL_LIBRARY": "/none"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_queries_agree_with_the_build() -> None:
    root = pathlib.Path(__file__).parents[2]
    text = (root / "CMakeLists.txt").read_text()
    libraries = re.findall(r"(?i)\b(mpi|nccl|gloo|cuda|hip|rccl|ccl)\b", text)
    assert libraries == []
    for name in _FALSE:
        assert not getattr(hvd, name)(), name


@pytest.mark.parametrize("name", [n for n in _FALSE if n.endswith("_built")])
def test_verbose_is_accepted(name: str) -> None:
    assert getattr(hvd, name)(verbose=True) == getattr(hvd, name)()


def test_mpi_is_not_built() -> None:
    assert hvd.mpi_built() is False


def test_cuda_and_nccl_count_only_where_they_are_found() -> None:
    script = (
        "import hvd_keras as hvd; "
        "print(hvd.nccl_built(), hvd.nccl_built(verbose=True), "
        "hvd.cuda_built())"
    )
    assert printed_without_libraries(script) == "0 0 False\n"


def test_settings_are_read_in_init_alone() -> None:
    script = (
        "import os; import hvd_keras as hvd; hvd.init(); "
        "found = hvd.nccl_built(), hvd.cuda_built(); "
        "os.environ.update(HVD_NCCL_LIBRARY='/none', HVD_CYCLE_TIME='soon'); "
        "assert (hvd.nccl_built(), hvd.cuda_built()) == found; "
        "print(found)"
    )
    assert printed_without_libraries(script) == "(0, False)\n"


@pytest.mark.parametrize(
    "check", ["num_rank_is_power_2", "check_num_rank_power_of_2"]
)
def test_powers_of_two(check: str) -> None:
    powers = [n for n in range(-2, 40) if getattr(hvd, check)(n)]
    assert powers == [1, 2, 4, 8, 16, 32]


def test_one_host_is_homogeneous() -> None:
    with pytest.raises(hvd.NotInitializedError, match="is_homogeneous"):
        hvd.is_homogeneous()
    hvd.init()
    try:
        assert hvd.is_homogeneous() is True
    finally:
        hvd.shutdown()
