"""hvdrun sets how many threads and which memory a rank's libraries use."""

from __future__ import annotations

import os

import jobs
import pytest


def test_ranks_share_the_cores_unless_the_user_sets_threads() -> None:
    code = """
        import os
        print(os.environ["TF_NUM_INTRAOP_THREADS"])
        print(os.environ["TF_NUM_INTEROP_THREADS"])
        print(os.environ["OMP_NUM_THREADS"])
        print(os.environ["TF_CPU_ALLOCATOR_USE_BFC"])
        """
    cores = len(os.sched_getaffinity(0))
    job = jobs.run_python(2, code)
    expected = str(max(1, cores // 2))
    assert job.lines(1) == [expected, expected, expected, "1"]
    assert f"TF_NUM_INTRAOP_THREADS={expected}" in job.stderr
    assert "OMP_NUM_THREADS" not in job.stderr
    job = jobs.run_python(2, code, "-v")
    assert f"OMP_NUM_THREADS={expected}" in job.stderr
    job = jobs.run_python(
        2, code, "-v", OMP_NUM_THREADS="7", TF_CPU_ALLOCATOR_USE_BFC="0"
    )
    assert job.lines(0) == [expected, expected, "7", "0"]
    assert "OMP_NUM_THREADS" not in job.stderr
    assert "TF_CPU_ALLOCATOR_USE_BFC" not in job.stderr


@pytest.mark.thorough
def test_tensorflow_reuses_its_memory() -> None:
    job = jobs.run_python(
        1,
        """
        import resource
        import tensorflow as tf

        @tf.function
        def add(x):
            return x + 1.0

        x = tf.zeros([12 << 20])  # 48 MB, more than glibc ever keeps
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(5):
                add(x)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        faults()
        print(faults())
        """,
    )
    assert int(job.lines(0)[0]) < 5000  # 61,440 if all pages were fresh
