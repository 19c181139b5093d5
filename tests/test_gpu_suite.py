"""Runs tests/gpu in jobs of 1 to 4 ranks, on fake GPUs: `pytest tests`.

The fake (tests/gpu/fake) implements CUDA and NCCL with host memory and threads.
hvd_keras opens it like the real libraries.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from selection import thorough_except

ROOT = pathlib.Path(__file__).parents[1]
GPU = ROOT / "tests" / "gpu"
# The fakes sum values with these.
OTHER_SOURCES = [
    "tf_ops/collectives/reduce.cc",
    "tf_ops/collectives/vectors.cc",
    "tf_ops/common/status.cc",
    "tf_ops/common/types.cc",
]
# The path of a real NCCL; opening it needs no GPU.
REAL_NCCL = os.environ.get("TEST_NCCL_LIBRARY")


# `make bazel` and `make test-cc` build these.
BUILT = [
    ROOT / "build" / "test-cc-plain" / "lib" / "libfake_gpu.so",
    ROOT / "build" / "bazel-bin" / "tests/gpu/fake/libfake_gpu.so",
]


def built_fake(folder: pathlib.Path) -> str:
    """Returns the path of the fake libraries; builds them if need be.

    Args:
        folder: Where to build them.
    """
    sources = sorted(GPU.glob("fake/*"))
    newest = max(source.stat().st_mtime for source in sources)
    for built in BUILT:
        if built.exists() and built.stat().st_mtime > newest:
            return str(built)
    library = folder / "libfake_gpu.so"
    command = shlex.split(os.environ.get("CXX", "g++"))
    command += ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{ROOT}"]
    command += [str(source) for source in sources if source.suffix == ".cc"]
    command += [str(ROOT / source) for source in OTHER_SOURCES]
    command += ["-o", str(library), "-lpthread", "-lrt"]
    subprocess.run(command, check=True)
    return str(library)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_fake(tmp_path_factory.mktemp("fake_gpu"))


def run_job(
    num_ranks: int,
    *command: str,
    fake: str,
    options: Sequence[str] = (),
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "hvd_keras.run", "-np", str(num_ranks)]
    return subprocess.run(
        [*launcher, "--grace", "20", *options, "--", sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(GPU)]),
            "TEST_GPU": "fake",
            "HVD_GPU_PACKING": "batch",  # or fakes would decide it
            "HVD_CUDART_LIBRARY": fake,
            "HVD_NCCL_LIBRARY": fake,
            "HVD_NVML_LIBRARY": fake,
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def test_averages_of_three_ranks(fake: str) -> None:
    """1/3 is no power of two; the switch that FAKE_GPU_MULTICAST makes sums."""
    for multicast in ("0", "1"):
        job = run_job(
            3,
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"),
            *(f"--confcutdir={GPU}", "-k", "average or float8 or scales"),
            str(GPU),
            fake=fake,
            **({"FAKE_GPU_MULTICAST": "1"} if multicast == "1" else {}),
        )
        assert job.returncode == 0, job.stdout[-20_000:]
        assert "misuse" not in job.stdout


@pytest.mark.parametrize("num_ranks", thorough_except([1, 2, 3, 4], 2))
def test_gpu(fake: str, num_ranks: int) -> None:
    # Not captured: the log tells how tensors are packed.
    arguments = ["-q", "-s", "-p", "no:cacheprovider", f"--confcutdir={GPU}"]
    # 1 rank: a driver too old for batched copies. 2 ranks: the copies of CUDA
    # 13, packed as is quickest. 3 ranks: no packing. All: streams with random
    # delays.
    environ = {
        1: {"FAKE_CUDA_DRIVER": "12020"},
        2: {
            "FAKE_CUDA_VERSION": "13000",
            "HVD_GPU_PACKING": "auto",
            "HVD_GPU_FUSION_BUFFER": "1000000",  # fakes move bytes slowly
        },
        3: {"HVD_GPU_PACKING": "none"},
    }.get(num_ranks, {})
    job = run_job(
        num_ranks,
        *("-m", "pytest", *arguments, str(GPU)),
        fake=fake,
        FAKE_GPU_JITTER_US="20",
        **environ,
    )
    assert job.returncode == 0, job.stdout[-20_000:]
    assert f"[{num_ranks - 1}] " in job.stdout
    is_measured = "small tensors on GPUs are packed by" in job.stdout
    assert is_measured == (environ.get("HVD_GPU_PACKING") == "auto")
    assert " skipped" not in job.stdout, job.stdout[-5_000:]
    assert "misuse" not in job.stdout


def test_recording_an_event_again_does_not_end_an_earlier_wait(
    fake: str,
) -> None:
    """So CUDA behaves, and the engine relies on it: it reuses events."""
    cuda = ctypes.CDLL(fake)

    def make(create: str, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert getattr(cuda, create)(ctypes.byref(made), *arguments) == 0
        return made

    slow, other, waiting = (
        make("cudaStreamCreateWithPriority", 1, 0) for _ in range(3)
    )
    event, end = (make("cudaEventCreateWithFlags", 2) for _ in range(2))
    cell = ctypes.create_string_buffer(8)
    start = time.monotonic()
    cuda.fakeCopyLater(cell, cell, ctypes.c_size_t(8), 200_000, slow)
    cuda.cudaEventRecord(event, slow)
    cuda.cudaStreamWaitEvent(waiting, event, 0)
    cuda.cudaEventRecord(event, other)
    cuda.cudaEventRecord(end, waiting)
    cuda.cudaEventSynchronize(end)
    assert time.monotonic() - start > 0.15


@pytest.mark.thorough
def test_the_benchmark_runs(fake: str) -> None:
    script = str(ROOT / "benchmarks" / "gpu.py")
    arguments = ("--calls", "2", "--max-bytes", "1024")
    job = run_job(2, script, *arguments, fake=fake)
    assert job.returncode == 0, job.stdout[-5_000:]
    assert '"blocking_us": ' in job.stdout, job.stdout
    assert '"what": "gradients"' in job.stdout, job.stdout
    assert "misuse" not in job.stdout


def test_two_process_sets_at_once(fake: str) -> None:
    script = str(GPU / "sets_at_once.py")
    job = run_job(3, script, "--calls", "150", fake=fake)
    assert job.returncode == 0, job.stdout[-5_000:]
    assert "[2] both sets have ended" in job.stdout, job.stdout
    assert "misuse" not in job.stdout


def test_the_others_survive_a_rank_that_dies(fake: str) -> None:
    job = run_job(3, str(GPU / "lost_rank.py"), fake=fake)
    assert "[0] rank 0 survived" in job.stdout, job.stdout[-20_000:]
    assert "[1] rank 1 survived" in job.stdout, job.stdout[-20_000:]


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plugin that makes devices of type GPU from the fakes."""
    import tensorflow as tf

    device = tmp_path_factory.mktemp("plugin") / "libfake_device.so"
    command = shlex.split(os.environ.get("CXX", "g++"))
    command += ["-std=c++17", "-O1", "-fPIC", "-shared", "-o", str(device)]
    command += ["-isystem", tf.sysconfig.get_include()]
    command += [str(GPU / "tensorflow" / "fake_device.cc"), "-ldl"]
    command += tf.sysconfig.get_link_flags()
    subprocess.run(command, check=True)
    return str(device)


def test_tensorflow_kernels(fake: str, plugin: str) -> None:
    job = run_job(
        2,
        str(GPU / "tensorflow" / "kernels.py"),
        fake=fake,
        FAKE_DEVICE_LIBRARY=plugin,
        HVD_GPUS_PER_RANK="0",
        FAKE_GPU_JITTER_US="20",
    )
    assert job.returncode == 0, job.stdout[-20_000:]
    assert "[1] the kernels ran" in job.stdout, job.stdout


INIT = "import hvd_keras as hvd; hvd.init(); hvd.shutdown(); print('fine')"


def test_init_connects_or_fails(fake: str) -> None:
    job = run_job(2, "-c", INIT, fake=fake, HVD_GPU="on")
    assert job.returncode == 0, job.stdout
    assert "[1] fine" in job.stdout
    job = run_job(
        2, "-c", INIT, fake=fake, HVD_GPU="on", FAKE_GPU_MEMORY="1000000"
    )
    assert job.returncode != 0
    assert "fine" not in job.stdout
    assert "rank 0 cannot run collectives on its GPU" in job.stdout, job.stdout
    assert "is out of memory: the fusion buffer" in job.stdout, job.stdout
    assert "TensorFlow takes all memory when it begins" in job.stdout
    job = run_job(
        2, "-c", INIT, fake=fake, HVD_GPU="early", FAKE_GPU_MEMORY="1000000"
    )
    assert job.returncode == 0, job.stdout
    assert "[1] fine" in job.stdout
    assert "could not connect the GPUs. barrier" in job.stdout, job.stdout
    job = run_job(
        1, "-c", INIT, fake=fake, HVD_GPU="on", HVD_NCCL_COMM_BLOCKING="1"
    )
    assert "NCCL_COMM_BLOCKING must not be 1" in job.stdout, job.stdout
    job = run_job(1, "-c", INIT, fake=fake, HVD_GPU="on", FAKE_GPU_COUNT="0")
    assert "CUDA finds no GPU" in job.stdout, job.stdout
    job = run_job(1, "-c", INIT, fake="/no/such/file", HVD_GPU="on")
    assert "the CUDA runtime was not found" in job.stdout, job.stdout


def test_old_libraries_are_refused(fake: str) -> None:
    job = run_job(
        1, "-c", INIT, fake=fake, HVD_GPU="on", FAKE_CUDA_VERSION="11080"
    )
    assert "it is version 11.8, older than 12.0" in job.stdout, job.stdout
    job = run_job(
        1, "-c", INIT, fake=fake, HVD_GPU="on", FAKE_NCCL_VERSION="21605"
    )
    assert "it is version 2.16.5, older than 2.23.0" in job.stdout, job.stdout


FLOAT8 = """
import ctypes
import os
is_first = os.environ["HVD_RANK"] == "0"
os.environ["FAKE_GPU_CAPABILITY"] = "9" if is_first else "8"
import hvd_keras as hvd
from calls import run
from devices import open_device
import ml_dtypes, numpy as np
hvd.init()
device = open_device(hvd.local_rank())
try:
    run(device, "allreduce", "a", [np.ones(4)], "float8_e5m2", op=1)
except hvd.InvalidArgumentError as error:
    print(error)
hvd.shutdown()
"""


def test_float8_is_refused_on_all_ranks(fake: str) -> None:
    job = run_job(2, "-c", FLOAT8, fake=fake)
    for rank in range(2):
        expected = (
            f"[{rank}] allreduce 'a': rank 1 cannot take part: NCCL reduces "
            "float8 on GPUs of compute capability 9.0 or more. Received: 8.x"
        )
        assert expected in job.stdout, job.stdout


@pytest.mark.skipif(REAL_NCCL is None, reason="TEST_NCCL_LIBRARY is not set")
def test_a_real_nccl_is_opened(fake: str) -> None:
    """It makes the id without a GPU, and then refuses to connect."""
    assert REAL_NCCL is not None
    job = run_job(
        1, "-c", INIT, fake=fake, HVD_GPU="on", HVD_NCCL_LIBRARY=REAL_NCCL
    )
    assert "ncclCommInitRankConfig failed" in job.stdout, job.stdout
    assert "unhandled cuda error" in job.stdout, job.stdout


def test_an_elastic_job_connects_its_gpus_anew(fake: str) -> None:
    job = run_job(
        3,
        str(GPU / "elastic_rank.py"),
        fake=fake,
        options=["--min-np", "1", "--restart-delay", "2"],
        HVD_GPU="on",
    )
    assert job.returncode == 0, job.stdout[-20_000:]
    counts = [job.stdout.count(f"summed on {size}") for size in (3, 2)]
    assert counts == [3 + 3, 2], job.stdout[-20_000:]
