"""Which GPU each rank gets, on fake GPUs: `pytest tests`."""

from __future__ import annotations

import pytest
from test_gpu_suite import fake, plugin, run_job

from hvd_keras.run.ranks import environment

__all__ = ["fake", "plugin"]

# Says what CUDA sees, and sums on the GPU that a rank has by itself.
SUM = """
import os
import hvd_keras as hvd
import numpy as np
from calls import run
from devices import open_device
hvd.init()
device = open_device(hvd.local_rank())
try:
    (out,) = run(device, "allreduce", "a", [np.ones(4)], op=int(hvd.Sum))
    print("sum", out[0], "on", os.environ.get("CUDA_VISIBLE_DEVICES"))
except hvd.HvdError as error:
    print(error)
hvd.shutdown()
"""


def test_each_rank_gets_a_gpu(fake: str) -> None:
    job = run_job(2, "-c", SUM, fake=fake)
    for rank in range(2):
        assert f"[{rank}] sum 2.0 on {rank}" in job.stdout, job.stdout
    assert "each rank sees its own GPU: 0 1 (HVD_GPUS" in job.stdout, job.stdout
    job = run_job(2, "-c", SUM, fake=fake, CUDA_VISIBLE_DEVICES="6,3,1")
    assert "[0] sum 2.0 on 6" in job.stdout, job.stdout
    assert "[1] sum 2.0 on 3" in job.stdout, job.stdout


def test_another_launcher_gives_all_gpus_to_each_rank(fake: str) -> None:
    """As srun does; `init()` then shares them out."""
    hide = (
        "import os; os.environ.pop('CUDA_VISIBLE_DEVICES', None); "
        "os.environ.pop('HVD_GPUS_PER_RANK')\n"
    )
    job = run_job(2, "-c", hide + SUM, fake=fake, HVD_GPUS_PER_RANK="0")
    for rank in range(2):
        assert f"[{rank}] sum 2.0 on {rank}" in job.stdout, job.stdout
        assert f"rank {rank}: sees GPU {rank} of 0,1,2" in job.stdout


def test_two_ranks_on_one_gpu(fake: str) -> None:
    one = {"FAKE_GPU_COUNT": "1", "HVD_GPUS_PER_RANK": "1"}
    job = run_job(2, "-c", SUM, fake=fake, **one)
    for rank in range(2):
        expected = (
            f"[{rank}] allreduce 'a': each rank must have a GPU of its own. "
            "Received: GPU 0000:1A:00.0 for both rank 0 and rank 1."
        )
        assert expected in job.stdout, job.stdout
    assert "2 ranks see the only GPU: there are too few" in job.stdout
    job = run_job(2, "-c", SUM, fake=fake, HVD_GPU_SHARE="1", **one)
    assert "[1] sum 2.0 on" in job.stdout, job.stdout
    assert "2 ranks share the only GPU" in job.stdout
    assert "too few" not in job.stdout


def test_slices_of_one_gpu_need_a_newer_nccl(fake: str) -> None:
    job = run_job(2, "-c", SUM, fake=fake, FAKE_GPU_SLICES="2")
    text = "no two slices (MIG) of one GPU. Received: slices of GPU 0000:1A"
    assert f"[1] allreduce 'a': NCCL before 2.30 connects {text}" in job.stdout
    job = run_job(
        2, "-c", SUM, fake=fake, FAKE_GPU_SLICES="2", FAKE_NCCL_VERSION="23003"
    )
    assert "[1] sum 2.0 on 1" in job.stdout, job.stdout


VISIBLE = """
import os, sys
import tensorflow as tf
from tensorflow.python.framework import load_library
load_library.load_pluggable_device_library(os.environ["FAKE_DEVICE_LIBRARY"])
tf.config.list_physical_devices("GPU")
if "late" in sys.argv:
    tf.zeros(3)
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
os.environ["HVD_GPUS_PER_RANK"] = "1"
import hvd_keras as hvd
hvd.init()
print([device.name for device in tf.config.get_visible_devices("GPU")])
hvd.shutdown()
"""


@pytest.mark.thorough
def test_tensorflow_that_has_listed_gpus_sees_its_own(
    fake: str, plugin: str
) -> None:
    environ = {
        "FAKE_DEVICE_LIBRARY": plugin,
        "FAKE_DEVICE_COUNT": "2",
        "FAKE_GPU_COUNT": "2",
        "HVD_GPUS_PER_RANK": "0",
    }
    job = run_job(2, "-c", VISIBLE, fake=fake, **environ)
    for rank in range(2):
        expected = f"[{rank}] ['/physical_device:GPU:{rank}']"
        assert expected in job.stdout, job.stdout
    job = run_job(2, "-c", VISIBLE, "late", fake=fake, **environ)
    assert "TensorFlow uses all GPUs, for it began before" in job.stdout


@pytest.mark.parametrize(
    ("visible", "settings", "expected"),
    [
        ("0,1,2,3", {}, [["0"], ["1"]]),
        ("GPU-a,GPU-b", {}, [["GPU-a"], ["GPU-b"]]),
        ("0,1,2,3", {"HVD_GPUS_PER_RANK": "2"}, [["0", "1"], ["2", "3"]]),
        ("0,1,2,3", {"HVD_GPUS_PER_RANK": "0"}, [None, None]),
        ("5", {}, [None, None]),
        ("", {}, [None, None]),
        ("-1", {}, [None, None]),
        ("5,NoDevFiles", {}, [None, None]),
    ],
)
def test_shares(
    visible: str, settings: dict[str, str], expected: list[list[str] | None]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, **settings}
    found = environment.shares_of_gpus(environ, 2, is_horovod=False)
    assert found == expected
    horovod = environment.shares_of_gpus(environ, 2, is_horovod=True)
    assert horovod == (expected if settings else [None, None])
