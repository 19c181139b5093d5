"""Ranks of an unchanged script that make files in turn, one process of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_keras._common import replacements
from hvd_keras.distribution import _turns


class Interrupted(BaseException):
    pass


@pytest.fixture
def turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int]]:
    """Makes this process rank 1 of 2, and gives the lock of rank 0."""
    monkeypatch.setattr(_turns, "of_host", lambda: str(tmp_path / "turn"))
    monkeypatch.setattr(_turns, "_num_ranks", 2)
    monkeypatch.setattr(_turns, "_turn", 0)
    monkeypatch.setattr(_turns, "_rank", 0)
    other = _turns._taken(0)
    monkeypatch.setattr(_turns, "_rank", 1)
    monkeypatch.setattr(_turns, "_own", _turns._taken(0))
    monkeypatch.setattr(_turns, "_may_go", False)
    yield [other]
    _turns.end()


def interrupt(seconds: float) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def test_a_rank_that_was_interrupted_waits_again(turns: list[int]) -> None:
    for _ in range(2):
        interrupt(0.1)
        with pytest.raises(Interrupted):
            _turns.wait()
    os.close(turns.pop())
    interrupt(20.0)
    _turns.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_ranks_meet_after_an_interrupt(turns: list[int]) -> None:
    interrupt(0.1)
    with pytest.raises(Interrupted), _turns.ranks_meet():
        pass
    os.close(turns.pop())
    interrupt(20.0)  # it must not wait for a lock of its own
    with _turns.ranks_meet():
        signal.setitimer(signal.ITIMER_REAL, 0)


SCRIPT = """
import h5py
import tensorflow as tf

calls = {
    "writer": lambda: tf.io.TFRecordWriter("rows.tfrecord", "GZIP"),
    "file": lambda: tf.io.gfile.GFile("new", mode="w"),
    "look": lambda: tf.io.gfile.exists("new"),
    "pattern": lambda: tf.io.gfile.glob("new/*.jpg"),
    "folder": lambda: tf.io.gfile.makedirs("new/folder"),
    "checkpoint": lambda: tf.train.Checkpoint().write("new"),
    "model": lambda: tf.saved_model.save(tf.Module(), "new"),
    "hdf5": lambda: h5py.File("new.h5", "w"),
    "old look": lambda: tf.io.gfile.isdir(old),
    "old pattern": lambda: tf.io.gfile.glob(old + "/*.none"),
    "old file": lambda: tf.io.gfile.GFile(old + "/os.py"),
    "old file, written": lambda: tf.io.gfile.GFile(old + "/os.py", "a"),
}
"""


@pytest.fixture
def calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Calls of a script in an empty folder, which ranks hear of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    home = {"__name__": "__main__", "old": os.path.dirname(os.__file__)}
    exec(compile(SCRIPT, str(tmp_path / "train.py"), "exec"), home)
    for package in ("tensorflow", "h5py"):
        _turns._hear_calls(package)
    found: Any = home["calls"]
    yield found
    for one in replacements.replacements():
        if one.row.home == "distribution._turns":
            one.restore()


def test_what_tensorflow_and_hdf5_make_waits(
    turns: list[int], calls: dict[str, Any], tmp_path: Path
) -> None:
    at_once = set()
    for name, call in calls.items():
        interrupt(0.1)
        with contextlib.suppress(Interrupted):
            call()
            at_once.add(name)
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert at_once == {"old look", "old pattern", "old file"}
    assert not list(tmp_path.glob("new*"))
    # Calls of other packages, such as Keras, are no calls of the script.
    import tensorflow as tf

    home: dict[str, Any] = {"__name__": "keras.src.saving", "tf": tf}
    path = "/lib/site-packages/keras/src/saving.py"
    exec(compile("found = tf.io.gfile.exists('new')", path, "exec"), home)
    assert not home["found"]
    os.close(turns.pop())
    interrupt(20.0)
    assert not calls["look"]()
    signal.setitimer(signal.ITIMER_REAL, 0)
