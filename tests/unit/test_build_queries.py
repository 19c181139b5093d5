from __future__ import annotations

import pathlib
import re

import pytest

import hvd_keras as hvd

_FALSE = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def test_the_build_has_what_the_queries_say() -> None:
    root = pathlib.Path(__file__).parents[2]
    text = (root / "CMakeLists.txt").read_text()
    libraries = re.findall(r"(?i)\b(mpi|nccl|gloo|cuda|hip|rccl|ccl)\b", text)
    assert libraries == []
    for name in _FALSE:
        assert not getattr(hvd, name)(), name


@pytest.mark.parametrize("name", [n for n in _FALSE if n.endswith("_built")])
def test_verbose_is_accepted(name: str) -> None:
    assert getattr(hvd, name)(verbose=True) == getattr(hvd, name)()


def test_versions_are_numbers() -> None:
    assert hvd.nccl_built() == 0
    assert hvd.mpi_built() is False


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
