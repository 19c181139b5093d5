"""Examples run on two hosts as on one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from network import ADDRESSES, ROOT, Network, finish, free_port, python

# Runs the example; each rank writes the weights with which the fit has ended.
_EXAMPLE = """
    import os, runpy, sys
    import keras
    import numpy as np
    evaluate = keras.Model.evaluate

    def noting_weights(model, *args, **options):
        rank = os.environ["HVD_RANK"]
        np.savez(f"{folder}/{rank}.npz", *model.get_weights())
        return evaluate(model, *args, **options)

    keras.Model.evaluate = noting_weights
    folder, example = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(example))
    sys.argv = [example, "--epochs=2", "--max_images=512"]
    runpy.run_path(example, run_name="__main__")
"""


def _weights(folder: Path, rank: int) -> list[np.ndarray]:
    with np.load(folder / f"{rank}.npz") as file:
        return [file[name] for name in file.files]


@pytest.mark.thorough
def test_weights_are_those_of_one_host(
    network: Network, secret: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    example = f"{ROOT}/examples/keras_digits.py"
    one, two = ([*python(_EXAMPLE), str(folder), example] for folder in folders)
    subprocess.run(
        [sys.executable, "-m", "hvd_keras.run", "-np", "4", "--", *one],
        check=True,
        env=network.environ(PYTHONPATH=ROOT),  # with scikit-learn
    )
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *two, HVD_SECRET_FILE=secret,
            PYTHONPATH=ROOT,
        )
        for host in range(2)
    ]  # fmt: skip
    for job in jobs:
        status, _, stderr = finish(job, 120)
        assert status == 0, stderr
    expected = _weights(folders[0], 0)
    first = _weights(folders[1], 0)
    for value, wanted in zip(first, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    for rank in range(1, 4):
        for value, same in zip(_weights(folders[1], rank), first, strict=True):
            np.testing.assert_array_equal(value, same)


@pytest.mark.thorough
@pytest.mark.usefixtures("network")  # it skips where there are no namespaces
def test_two_hosts_of_one_machine_learn_the_digits() -> None:
    example = f"{ROOT}/examples/custom_loop.py"
    tool = f"{ROOT}/tools/two_hosts.py"
    output = subprocess.run(
        [sys.executable, tool, "-np", "1", sys.executable, example],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    ).stdout
    ((accuracy, num_ranks),) = re.findall(
        r"test accuracy ([\d.]+), with (\d) process", output
    )
    assert num_ranks == "2"
    assert float(accuracy) > 0.95
