"""The examples keep their promises, started as the README starts them."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
EPOCH = re.compile(r"loss: ([\d.]+).* val_accuracy: ([\d.]+)")


def run(num_ranks: int, example: str, *options: str, **extra: str) -> str:
    environ = {k: v for k, v in os.environ.items() if k[:4] != "HVD_"}
    environ.update(extra)
    launcher = [sys.executable, "-m", "hvd_keras.run", "-np", str(num_ranks)]
    script = [sys.executable, str(EXAMPLES / example), *options]
    result = subprocess.run(
        [*launcher, "--", *script],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout


def accuracy(output: str) -> float:
    found = re.findall(r"test accuracy ([\d.]+)", output)
    assert len(found) == 1, output[-4000:]  # by rank 0 alone
    return float(found[0])


LOAD = """
import sys
sys.modules["hvd_keras"] = None  # an import of it fails
import keras
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    assert type(model.optimizer) is keras.optimizers.Adam
    assert int(model.optimizer.iterations) == 15 * 22
"""


@pytest.mark.thorough
def test_digits_are_the_same_with_any_number_of_ranks(
    tmp_path: pathlib.Path,
) -> None:
    curves, paths = {}, []
    for num_ranks in (1, 2, 4):
        paths.append(str(tmp_path / f"model_{num_ranks}.keras"))
        output = run(num_ranks, "keras_digits.py", f"--save={paths[-1]}")
        assert accuracy(output) >= 0.97
        assert f"with {num_ranks} process(es)" in output
        curves[num_ranks] = [
            (float(loss), float(value)) for loss, value in EPOCH.findall(output)
        ]
        assert len(curves[num_ranks]) == 15
    subprocess.run(
        [sys.executable, "-c", LOAD, *paths],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    for num_ranks in (2, 4):
        for (loss, value), (loss_1, value_1) in zip(
            curves[num_ranks], curves[1], strict=True
        ):
            # The order of sums differs, and rounding grows from step to step.
            assert loss == pytest.approx(loss_1, rel=0.05, abs=2e-3)
            assert value == pytest.approx(value_1, abs=0.012)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_digits_are_learnt_on_other_backends(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    output = run(2, "keras_digits.py", "--epochs=2", KERAS_BACKEND=backend)
    assert accuracy(output) >= 0.8
    assert "with 2 process(es)" in output


@pytest.mark.thorough
def test_digits_refuses_a_batch_without_equal_shares() -> None:
    with pytest.raises(AssertionError, match="multiple of the number"):
        run(2, "keras_digits.py", "--batch_size=63")


@pytest.mark.skipif(
    not FASHION_MNIST.exists(), reason="dataset-fashion-mnist is missing"
)
def test_fashion_mnist() -> None:
    output = run(
        2,
        "keras_digits.py",
        "--data=fashion-mnist",
        "--epochs=1",
        "--batch_size=256",
        "--max_images=20000",
    )
    assert accuracy(output) > 0.7


@pytest.mark.thorough
def test_custom_loop() -> None:
    one, two = (accuracy(run(n, "custom_loop.py")) for n in (1, 2))
    assert one > 0.95
    assert two == pytest.approx(one, abs=0.012)
