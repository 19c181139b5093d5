"""The examples keep their promises, started as the README starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import jobs
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


def numbers(output: str, pattern: str) -> list[float]:
    """Returns the numbers in the one line that has this form."""
    found = list(re.finditer(pattern.replace("#", r"([\d.]+)"), output))
    assert len(found) == 1, output[-4000:]
    return [float(number) for number in found[0].groups()]


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
        assert f"ranks: {num_ranks}" in output
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
    assert "ranks: 2" in output


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


@pytest.mark.thorough
def test_text_transformer() -> None:
    output = run(2, "text_transformer.py")
    _, share = numbers(output, r"on # texts \(.* a share of #\)")
    assert share < 0.5
    assert accuracy(output) >= 0.9


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "pattern", "least", "tolerance"),
    [
        ("tabular", r"test AUC #", 0.99, 1e-3),
        ("two_phases", r"test accuracy # after", 0.95, 0.012),
        ("graph", r"test accuracy # on", 0.9, 0.012),
    ],
)
def test_a_result_is_good_and_that_of_one_process(
    example: str, pattern: str, least: float, tolerance: float
) -> None:
    one, two = (numbers(run(n, f"{example}.py"), pattern)[0] for n in (1, 2))
    assert one >= least
    assert two == pytest.approx(one, abs=tolerance)


@pytest.mark.thorough
def test_a_forecast_is_better_than_none() -> None:
    one, two = (
        numbers(run(n, "time_series.py"), "error #; # if nothing changed")
        for n in (1, 2)
    )
    assert one[0] < 0.3 * one[1]
    assert two == pytest.approx(one, abs=2e-3)


@pytest.mark.thorough
def test_a_language_model_takes_the_mean_over_the_words_of_all_ranks() -> None:
    one, two = (
        numbers(run(n, "language_model.py"), r"test loss #:")[0] for n in (1, 2)
    )
    assert one <= 4.8
    assert two == pytest.approx(one, abs=0.02)


def test_each_example_is_on_the_page_with_a_picture_of_its_run() -> None:
    page = (EXAMPLES.parent / "docs/examples.md").read_text()
    shared = {"digit_data", "job", "library_data"}
    names = {path.stem for path in EXAMPLES.glob("*.py")} - shared
    assert names <= set(re.findall(r"examples/(\w+)\.py", page))
    drawn = set(re.findall(r"images/examples/(\w+)\.svg", page))
    folder = EXAMPLES.parent / "docs/images/examples"
    assert {path.stem for path in folder.iterdir()} == drawn | {"readme"}
    for path in folder.iterdir():
        text = path.read_text()
        assert "prefers-color-scheme: dark" in text
        assert len(re.findall(r">\d ranks?: ", text)) in (2, 3)  # results


@pytest.mark.thorough
def test_recommender() -> None:
    output = run(2, "recommender.py")
    sent, whole = numbers(output, "a rank gave # kB .* have # kB")
    assert sent < 0.5 * whole
    rate, rate_of_popular = numbers(output, "modules: # of .*; # by pop")
    assert rate >= rate_of_popular + 0.08


def test_contrastive_loss_is_that_of_one_process() -> None:
    losses, rates = [], []
    for num_ranks in (1, 2):
        output = run(num_ranks, "contrastive.py")
        pattern = "compared with # halves, of which # were .* loss #"
        every, own, loss = numbers(output, pattern)
        assert (every, own) == (256, 256 / num_ranks)
        losses.append(loss)
        rates.append(numbers(output, "for # of the left ones, by chance #"))
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    for rate, by_chance in rates:
        assert by_chance < 0.02
        assert rate >= 0.55


@pytest.mark.thorough
def test_gan() -> None:
    pattern = "drawn #, noise #, other real ones #; # of 10"
    drawn, noise, real, num_digits = numbers(run(2, "gan.py"), pattern)
    # Nearer to real images than to noise.
    assert drawn - real < 0.5 * (noise - real)
    assert num_digits >= 8


@pytest.mark.thorough
def test_segmentation() -> None:
    one, two = (
        numbers(run(n, "segmentation.py"), "test mean IoU #")[0] for n in (1, 2)
    )
    assert one >= 0.8
    assert two == pytest.approx(one, abs=0.03)


@pytest.mark.thorough
def test_train_step() -> None:
    output = run(2, "train_step.py")
    clean, worse = numbers(output, "test accuracy #, on images .* worse #")
    assert clean >= 0.95
    assert worse >= 0.7
    output = run(2, "train_step.py", "--plain")
    (plain,) = numbers(output, "on images .* worse #")
    assert plain < worse - 0.1


@pytest.mark.parametrize(
    "backend", ["jax", pytest.param("torch", marks=pytest.mark.thorough)]
)
def test_loops_of_other_backends(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    output = run(2, f"{backend}_loop.py", KERAS_BACKEND=backend)
    assert accuracy(output) >= 0.95
    assert "ranks: 2" in output


@pytest.mark.thorough
def test_resume_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path: pathlib.Path,
) -> None:
    whole = run(2, "resume.py", f"--backup={tmp_path / 'whole'}")
    assert accuracy(whole) >= 0.95
    backup = f"--backup={tmp_path / 'killed'}"
    script = [sys.executable, str(EXAMPLES / "resume.py"), backup]
    environ = jobs.clean_environ(PYTHONPATH=str(EXAMPLES.parent))
    job = jobs.start("-np", "2", "--", *script, environ=environ)
    assert job.stdout is not None
    assert any("epoch 4:" in line for line in job.stdout)
    for pid in jobs.ranks_of(job.pid):
        os.kill(pid, signal.SIGKILL)
    assert jobs.finish(job).status != 0
    rest = run(2, "resume.py", backup)
    assert "epoch 1:" not in rest
    assert "epoch 15:" in rest
    weights = [re.findall(r"weights (\w+)", output) for output in (whole, rest)]
    assert len(weights[0]) == 1
    assert weights[0] == weights[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tracker", "pattern"),
    [("mlflow", "*/*/metrics/val_accuracy"), ("wandb", "wandb/offline-run-*")],
)
def test_tracking_makes_one_run(
    tracker: str, pattern: str, tmp_path: pathlib.Path
) -> None:
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed")
    options = (f"--tracker={tracker}", f"--folder={tmp_path}")
    output = run(2, "tracking.py", *options)
    (tracked,) = numbers(output, "has val_accuracy #")
    assert tracked == accuracy(output) >= 0.95
    assert len(list(tmp_path.glob(pattern))) == 1  # of rank 0 alone


@pytest.mark.thorough
def test_the_cells_of_the_notebook_run(tmp_path: pathlib.Path) -> None:
    book = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    cells = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    script = tmp_path / "cells.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells))
    output = subprocess.run(
        [sys.executable, str(script)],
        env=jobs.clean_environ(PYTHONPATH=str(EXAMPLES.parent)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    ).stdout
    (here,) = re.findall(r"in the notebook ([\d.]+)", output)
    assert accuracy(output) >= 0.9
    assert float(here) == pytest.approx(accuracy(output), abs=5e-3)


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name
