"""`hvdrun --distribute` trains programs that know nothing of ranks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import jobs
import numpy as np
import pytest

PROGRAMS = pathlib.Path(__file__).parent / "distribute_programs.py"
BACKENDS = ["tensorflow", "jax", "torch"]


def results(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def distributed(
    num_ranks: int, backend: str, folder: pathlib.Path, *names: str
) -> dict[str, np.ndarray]:
    """Returns what programs get on some ranks."""
    path, shared = folder / f"{num_ranks}.npz", folder / f"shared{num_ranks}"
    shared.mkdir(exist_ok=True)
    job = jobs.run(
        "--distribute",
        "-np",
        str(num_ranks),
        sys.executable,
        str(PROGRAMS),
        str(path),
        *names,
        seconds=400,
        environ=jobs.clean_environ(
            KERAS_BACKEND=backend,
            SHARED=str(shared),
            HVD_DISTRIBUTE_SEED="11",
        ),
    )
    assert job.status == 0, job.stderr[-3000:]
    return results(path)


def check_equal(
    ours: dict[str, np.ndarray], one: dict[str, np.ndarray]
) -> None:
    assert ours.keys() == one.keys()
    wrong = {}
    for name, value in one.items():
        assert ours[name].shape == value.shape, name
        gap = np.max(np.abs(ours[name] - value), initial=0.0)
        share = gap / max(np.max(np.abs(value), initial=0.0), 1e-2)
        if not share <= 1e-5:
            wrong[name] = share
    assert wrong == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_end_as_in_keras_alone(
    backend: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "one.npz"
    environ = jobs.clean_environ(KERAS_BACKEND=backend)
    listed = subprocess.run(
        [sys.executable, str(PROGRAMS), str(path)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr[-3000:]
    one = results(path)
    for num_ranks in (2, 3):
        check_equal(distributed(num_ranks, backend, tmp_path), one)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shuffled_and_drawn_data_are_alike_on_any_number_of_ranks(
    backend: str, tmp_path: pathlib.Path
) -> None:
    one = distributed(1, backend, tmp_path, "shuffled")
    for num_ranks in (2, 3):
        ours = distributed(num_ranks, backend, tmp_path, "shuffled")
        check_equal(ours, one)


NO_FIT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(3):
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
print("done")
"""


def test_a_script_that_shares_nothing_is_told() -> None:
    job = jobs.run_python(2, NO_FIT, "--distribute")
    assert job.status == 0
    assert job.stdout.count("done") == 1  # of rank 0 alone, and no tag
    assert job.stdout.startswith("done")
    assert "nothing was distributed" in job.stderr
    assert "did the same work" in job.stderr


KERAS_DISTRIBUTION = """
import keras, numpy as np
from keras.distribution import DataParallel, DeviceMesh, LayoutMap
keras.distribution.initialize()
devices = keras.distribution.list_devices()
mine = keras.distribution.DataParallel()
assert keras.distribution.distribution() is None
print(len(devices), keras.distribution.get_device_count(), mine.num_processes)
assert mine.num_model_replicas == len(devices)
with mine.scope():
    assert keras.distribution.distribution() is mine
assert keras.distribution.distribution() is None
mesh = DeviceMesh((1,), ["batch"], devices[:1])
for wrong in (
    DataParallel(mesh),
    keras.distribution.ModelParallel(layout_map=LayoutMap(mesh)),
):
    try:
        keras.distribution.set_distribution(wrong)
    except (NotImplementedError, ValueError) as error:
        print(type(error).__name__, error)
mine.auto_shard_dataset = {shares}
keras.distribution.set_distribution(mine)
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(42, 3)).astype("float32")
if not mine.auto_shard_dataset:
    x = x[mine.data_shard_id :: mine.num_processes]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, x[:, :1], batch_size={batch}, verbose=2, shuffle=False)
print("sum", float(np.abs(model.get_weights()[0]).sum()))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_distribution_means_the_ranks(backend: str) -> None:
    sums = {}
    for shares, batch in ((True, 14), (False, 7)):
        code = KERAS_DISTRIBUTION.format(shares=shares, batch=batch)
        job = jobs.run_python(
            2,
            code,
            "--keras-distribution",
            "--no-tag",
            KERAS_BACKEND=backend,
            HVD_DISTRIBUTE_BATCH="all",
        )
        assert job.status == 0, job.stderr[-3000:]
        lines = job.stdout.splitlines()
        assert lines.count("2 2 2") == 2
        for words in ("one device for each of the 2 ranks", "ModelParallel"):
            assert sum(words in line for line in lines) == 2
        found = {line for line in lines if line.startswith("sum")}
        assert len(found) == 1
        sums[shares] = float(found.pop().split()[1])
    assert sums[True] == pytest.approx(sums[False], rel=1e-5)


def test_an_elastic_job_is_refused() -> None:
    job = jobs.run_python(2, "", "--distribute", "--min-np", "1")
    assert job.status != 0
    assert "need a fixed number of ranks" in job.stderr


FILES = """
import keras, numpy as np, os
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
for path in ("{folder}/no/such/model.keras", "{folder}/model.keras") * 2:
    try:
        model.save(path)
        print("saved", flush=True)
    except Exception as error:
        print("refused", type(error).__name__, flush=True)
again = keras.models.load_model("{folder}/model.keras")
np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
found = keras.utils.get_file(
    "text", "file://{folder}/source", cache_dir="{folder}/cache"
)
print("bytes", os.path.getsize(found), flush=True)
"""


def test_files_are_written_and_fetched_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").write_bytes(bytes(1 << 24))
    code = FILES.format(folder=tmp_path)
    job = jobs.run_python(3, code, "--distribute", "--show-ranks", "0,1,2")
    assert job.status == 0, job.stderr[-3000:]
    lines = [line.partition("] ")[2] for line in job.stdout.splitlines()]
    # What fails on rank 0 fails on all, each time; what follows is right.
    assert sum(line.startswith("refused") for line in lines) == 6
    assert lines.count("saved") == 6
    assert lines.count(f"bytes {1 << 24}") == 3
    assert job.stdout.count("refused HvdError") == 4
