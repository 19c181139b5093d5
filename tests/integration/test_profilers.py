"""Profilers show the collectives under their names."""

from __future__ import annotations

import pathlib
import subprocess
import sysconfig

import jobs
import pytest

ROOT = pathlib.Path(__file__).parents[2]

IN_TENSORFLOW = """
    import os, pathlib
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2
    import hvd_keras as hvd

    hvd.init()
    folder = pathlib.Path(os.environ["FOLDER"], str(hvd.rank()))

    @tf.function
    def mean(x):
        return hvd.allreduce(x, name="my/tensor")

    x = tf.ones([1000])
    mean(x)
    tf.profiler.experimental.start(str(folder))
    mean(x)
    tf.profiler.experimental.stop()
    mean(x)
    (file,) = folder.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    for plane in space.planes:
        names = plane.event_metadata
        for line in plane.lines:
            for event in line.events:
                if names[event.metadata_id].name.startswith("HorovodAllr"):
                    stats = {plane.stat_metadata[s.metadata_id].name:
                             s.int64_value or s.uint64_value
                             for s in event.stats}
                    print(names[event.metadata_id].name, stats,
                          event.duration_ps > 0)
    """

WITHOUT_TENSORFLOW = """
    import numpy as np
    import hvd_keras as hvd
    from hvd_keras import _core

    hvd.init()
    _core.allreduce("a/b", [np.ones(6, np.float32)], 1)
    """


def test_tensorflows_profiler_has_a_range_of_each_collective(
    tmp_path: pathlib.Path,
) -> None:
    job = jobs.run_python(2, IN_TENSORFLOW, FOLDER=str(tmp_path))
    for rank in range(2):
        assert job.lines(rank)[-1:] == [
            "HorovodAllreduce:my/tensor {'bytes': 4000, 'requests': 1} True"
        ]


@pytest.fixture(scope="module")
def nvtx_tool(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tool") / "libtool.so"
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-DNVTX_NO_IMPL", "-I",
         str(ROOT / "third_party/nvtx3"), "-o", str(path),
         str(pathlib.Path(__file__).with_name("nvtx_tool.c"))],
        check=True,
    )  # fmt: skip
    return str(path)


def test_nvtx_has_a_range_of_each_collective(
    nvtx_tool: str, tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "ranges.txt"
    jobs.run_python(
        1,
        WITHOUT_TENSORFLOW,
        NVTX_INJECTION64_PATH=nvtx_tool,
        NVTX_TOOL_OUTPUT=str(output),
    )
    assert output.read_text().splitlines() == ["HorovodAllreduce:a/b 24"]
