"""Draws the table of docs/distribute.md, by the programs of its tests.

Usage: python tests/integration/distribute_table.py [--ranks N ...]
    [--backends B ...] [--entries FILE] [--write]

PYTHONPATH has `.`, `tests` and `tests/hosts`.

Each of `distribute_programs` runs by Keras alone in one process, and unchanged
on N ranks. Without --write it prints the table. A file keeps the results; the
table has those of earlier runs that it holds, too.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import drawn_pages
import jobs
import numpy as np

Results = dict[str, np.ndarray]
PROGRAMS = pathlib.Path(__file__).parent / "distribute_programs.py"
PAGE = drawn_pages.TESTS.parent / "docs" / "distribute.md"
BEGIN = "<!-- `make distribute-table` draws what follows. -->"
RANKS = (1, 2, 3, 4)
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
TOLERANCE = 1e-5
SECONDS = 900
# What Keras alone draws at random is compared with one rank.
DRAWN = ("drawn",)
TITLES = {
    "sequential": "`Sequential`, arrays",
    "functional": "Functional model, two inputs and outputs, AUC",
    "subclass": "Subclass with `compute_loss`",
    "split": "`validation_split`",
    "held_out": "`validation_data` with weights",
    "weighted": "`sample_weight`",
    "of_classes": "`class_weight`",
    "masked": "`Embedding` with masks, `LSTM`",
    "normalized": "`BatchNormalization`",
    "own_steps": "`train_step` by hand, `BatchNormalization`; averaged weights",
    "shuffled": "Shuffled arrays, in models one after the other",
    "shuffled_batches": "Shuffled `PyDataset`",
    "py_dataset": "`PyDataset`",
    "dataset": "`tf.data.Dataset`, shuffled, with validation",
    "generated": "A generator, `steps_per_epoch`",
    "loader": "A `DataLoader` of torch",
    "shuffled_loader": "A `DataLoader` that shuffles; then arrays",
    "of_float64": "Arrays of float64",
    "evaluated": "`evaluate`",
    "predicted": "`predict`",
    "of_batches": "Callbacks that read the logs of batches",
    "saved": "`ModelCheckpoint`, `EarlyStopping`, `save`, loaded again",
    "own_logs": "`train_step` and `test_step` that log values of their own",
    "two_optimizers": "`train_step` with two optimizers and a tape",
    "scoped": "`DataParallel().scope()`",
    "own_shares": "`auto_shard_dataset=False`",
    "drawn": "Data and weights drawn without a seed",
    "in_a_loop": "`train_on_batch` in a loop",
}


def _results(path: pathlib.Path) -> Results:
    with np.load(path) as file:
        return dict(file)


def in_one_process(backend: str, folder: pathlib.Path) -> Results:
    """Returns what programs get in one process: of Keras alone if it can be."""
    path = folder / "one.npz"
    job = subprocess.run(
        [sys.executable, str(PROGRAMS), str(path)],
        env=jobs.clean_environ(KERAS_BACKEND=backend),
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    return {**distributed(1, backend, folder, *DRAWN), **_results(path)}


def distributed(
    num_ranks: int, backend: str, folder: pathlib.Path, *names: str
) -> Results:
    """Returns what programs, or all of them, get on some ranks."""
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
        seconds=SECONDS,
        environ=jobs.clean_environ(
            KERAS_BACKEND=backend,
            SHARED=str(shared),
            HVD_DISTRIBUTE_SEED="11",
        ),
    )
    assert job.status == 0, job.stderr[-3000:]
    return _results(path)


def gaps(ours: Results, one: Results) -> dict[str, float]:
    """Returns the largest relative difference of each program."""
    assert ours.keys() == one.keys()
    found: dict[str, float] = {}
    for name, value in one.items():
        assert ours[name].shape == value.shape, name
        gap = np.max(np.abs(ours[name] - value), initial=0.0)
        share = gap / max(np.max(np.abs(value), initial=0.0), 1e-2)
        program = name.partition(".")[0]
        found[program] = float(np.maximum(found.get(program, 0.0), share))
    return found


def wrong(found: dict[str, float]) -> dict[str, float]:
    """Returns those that are not equal; also what is not a number."""
    return {name: gap for name, gap in found.items() if not gap <= TOLERANCE}


def table_of(found: dict[str, dict[str, float]]) -> str:
    """Returns a line for each program; the keys are backends and ranks."""
    columns = [
        (f"{title}, {num}", found[f"{backend} {num}"])
        for backend, title in BACKENDS.items()
        for num in RANKS
        if f"{backend} {num}" in found
    ]
    lines = ["| | " + " | ".join(title for title, _ in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, title in TITLES.items():
        cells = []
        for _, gaps_of in columns:
            gap = gaps_of.get(name)
            is_equal = gap is not None and gap <= TOLERANCE
            cell = "" if gap is None else f"{gap:.0e}"
            cells.append("=" if is_equal else cell)
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--entries", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    entries = arguments.entries
    found: dict[str, dict[str, float]] = {}
    if entries is not None and entries.exists():
        found = json.loads(entries.read_text())
    for backend in arguments.backends:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            one = in_one_process(backend, folder)
            for num in arguments.ranks:
                ours = distributed(num, backend, folder)
                found[f"{backend} {num}"] = gaps(ours, one)
                told = wrong(found[f"{backend} {num}"])
                print(f"{backend}, {num} ranks: {told}", file=sys.stderr)
                if entries is not None:
                    entries.write_text(json.dumps(found))
    drawn_pages.show(table_of(found), PAGE, BEGIN, write=arguments.write)


if __name__ == "__main__":
    main()
