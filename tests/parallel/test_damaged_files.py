"""A damaged file is told by a typed error, or the one before is taken."""

from __future__ import annotations

import logging
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks._background import wait_for_all

pytestmark = pytest.mark.thorough(1, 4)

_STATE = "training_state.npz"
_BEFORE = "training_state.previous.npz"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The same folder on all ranks."""
    return pathlib.Path(hvd.broadcast_object(str(tmp_path)))


@pytest.fixture
def seed() -> int:
    """The same random number on all ranks; a failed test shows it."""
    return int(hvd.broadcast_object(random.randrange(1 << 30)))


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise InterruptedError


def train(*callbacks: Any) -> keras.Model:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    data = hvd.shard(kt.regression_data(), batch_size=kt.BATCH // hvd.size())
    model.fit(data, epochs=3, verbose=0, callbacks=list(callbacks))
    return model


def begin(saver: Callable[[], Any]) -> None:
    """Trains two of three epochs with what saves."""
    with pytest.raises(InterruptedError):
        train(saver(), Stop())
    wait_for_all()
    hvd.barrier()


def damage(path: pathlib.Path, how: random.Random) -> str:
    """Flips a bit, cuts the file or puts junk there; rank 0 does it."""
    content = bytearray(path.read_bytes())
    hvd.barrier()
    kind = how.choice(["flip", "cut", "junk", "empty"])
    at = how.randrange(len(content))
    if kind == "flip":
        content[at] ^= 1 << how.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "junk":
        content[at : at + 64] = how.randbytes(64)
    else:
        content.clear()
    if hvd.rank() == 0:
        path.write_bytes(content)
    hvd.barrier()
    return f"{kind} at {at}"


def backup(folder: pathlib.Path) -> Any:
    return hvd.callbacks.BackupAndRestore(folder)


def commits(folder: pathlib.Path) -> Any:
    return hvd.elastic.Elastic(100.0, folder)


NUMBERS = [3, pytest.param(30, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("saver", [backup, commits])
@pytest.mark.parametrize("number", NUMBERS)
def test_damage_is_harmless_or_told(
    folder: pathlib.Path,
    seed: int,
    saver: Callable[[pathlib.Path], Any],
    number: int,
) -> None:
    """The file before is taken, or nothing of the damage mattered."""
    expected = train().get_weights()
    how = random.Random(seed)
    for turn in range(number):
        own = folder / str(turn)
        begin(lambda own=own: saver(own))
        names = [_STATE] if saver is backup else [max(os.listdir(own))]
        hvd.barrier()
        what = damage(own / names[0], how)
        begun: list[int] = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs, begun=begun: begun.append(epoch)
        )
        model = train(saver(own), note)
        kt.assert_close(model.get_weights(), expected, 1e-6)
        assert begun in ([1, 2], [2]), (seed, what)
        kt.assert_equal_on_all_ranks(model.get_weights())
        hvd.barrier()
        assert not own.exists(), (seed, what)


@pytest.mark.parametrize("saver", [backup, commits])
@pytest.mark.parametrize("number", NUMBERS)
def test_damage_of_all_files_is_one_typed_error(
    folder: pathlib.Path,
    seed: int,
    saver: Callable[[pathlib.Path], Any],
    number: int,
) -> None:
    begin(lambda: saver(folder))
    paths = sorted(folder.glob("*.npz" if saver is backup else "*.hvd"))
    whole = {path: path.read_bytes() for path in paths}
    hvd.barrier()
    how = random.Random(seed)
    for _ in range(number):
        if hvd.rank() == 0:
            for path, content in whole.items():
                path.write_bytes(content[: how.randrange(len(content))])
        hvd.barrier()
        kind = hvd.HvdError if hvd.rank() else hvd.DamagedFileError
        with pytest.raises(kind) as raised:
            train(saver(folder))
        newest = str(folder / _STATE if saver is backup else max(paths))
        text = str(raised.value)
        assert f"{newest!r} is damaged" in text
        assert "bytes). Remove it to begin anew" in text
        for raw in ("BadZip", "pickle", "EOFError", "NoneType"):
            assert raw not in text
        hvd.barrier()


def test_the_damaged_file_is_put_aside_and_told(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(lambda: backup(folder))
    if hvd.rank() == 0:
        (folder / _STATE).write_bytes(b"junk")
    hvd.barrier()
    with (
        caplog.at_level(logging.WARNING, "hvd_keras"),
        pytest.raises(InterruptedError),
    ):
        train(backup(folder), Stop())
    wait_for_all()
    lines = [line for line in caplog.messages if "is damaged" in line]
    assert len(lines) == (hvd.rank() == 0)
    for line in lines:
        assert "(4 bytes)" in line
        assert _BEFORE in line
    hvd.barrier()
    assert (folder / f"{_STATE}.damaged").read_bytes() == b"junk"
    # The one that was whole has not been replaced by the damaged one.
    assert (folder / _BEFORE).stat().st_size > 4


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_damaged_model_is_told(
    folder: pathlib.Path, seed: int, suffix: str
) -> None:
    path = folder / f"m.{suffix}"
    if hvd.rank() == 0:
        train_alone(path)
    hvd.barrier()
    content = path.read_bytes()
    hvd.load_model(path)
    hvd.barrier()
    how = random.Random(seed)
    for _ in range(5):
        if hvd.rank() == 0:
            path.write_bytes(content[: how.randrange(len(content))])
        hvd.barrier()
        with pytest.raises(hvd.DamagedFileError, match=r"is damaged: .* bytes"):
            hvd.load_model(path)
        hvd.barrier()


def train_alone(path: pathlib.Path) -> None:
    model = kt.build(kt.functional_model)
    model.compile("adam", keras.losses.MeanSquaredError())
    model.train_on_batch(*(each[:4] for each in kt.regression_data()))
    model.save(path)


@pytest.mark.parametrize("kind", ["folder", "link"])
@pytest.mark.parametrize("saver", ["backup", "commits", "model"])
def test_what_is_in_the_way_is_told_before_training(
    folder: pathlib.Path, kind: str, saver: str
) -> None:
    name, make = {
        "backup": (_STATE, lambda: backup(folder)),
        "commits": (
            "commit-00000099-00000099.hvd",
            lambda: commits(folder),
        ),
        "model": (
            "m.keras",
            lambda: hvd.callbacks.ModelCheckpoint(folder / "m.keras"),
        ),
    }[saver]
    if hvd.rank() == 0 and kind == "folder":
        (folder / name).mkdir()
    elif hvd.rank() == 0:
        (folder / name).symlink_to(folder / "elsewhere.keras")
    hvd.barrier()
    begun: list[int] = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun.append(batch)

    if (kind, saver) == ("link", "model"):  # it is followed
        train(make())
        hvd.barrier()
        assert (folder / name).is_symlink()
        assert np.all(hvd.load_model(folder / "elsewhere.keras").count_params())
        return
    error = hvd.HvdError if hvd.rank() else hvd.InvalidArgumentError
    with pytest.raises(error, match=rf"{name}' must be .*Received: a {kind}"):
        train(make(), Note())
    assert not begun
