"""What a script does to files in a comparison is undone."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from hvd_keras._common import kept_files

_CHANGES = """
import os, pathlib, shutil, sys
from hvd_keras._common import kept_files

kept_files.MOST_BYTES = 5
kept_files.begin(pathlib.Path("kept"))
with open("appended", "a") as file:
    file.write("new")
with open("link", "w") as file:
    file.write("new")
os.rename("moved", "over")
os.rename("folder", "folder_before")
shutil.rmtree("tree")
with open(os.open("raw", os.O_WRONLY), "w") as file:
    file.write("new")
with open("large", "r+") as file:
    file.write("new")
open("same_large", "r+").close()
os.makedirs("made/deep")
for name in "made/deep/new", ".hidden", "a.lock":
    pathlib.Path(name).write_text("new")
"""


def test_files_are_as_before(tmp_path: pathlib.Path) -> None:
    files = "appended linked moved over raw tree/a tree/b/c".split()
    files += ["folder/a", "folder/b/c"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    for name in "large", "same_large":
        (tmp_path / name).write_text("old and long")
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    subprocess.run([sys.executable, "-c", _CHANGES], cwd=tmp_path, check=True)
    assert (tmp_path / "appended").read_text() == "oldnew"

    lost = kept_files.give_back(tmp_path / "kept")

    assert len(lost) == 1
    assert lost[0].startswith(repr(str(tmp_path / "large")))
    for name in files:
        assert (tmp_path / name).read_text() == "old", name
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "folder_before").exists()
    assert not list((tmp_path / "kept").glob("*.data"))
    # Caches and locks stay.
    assert (tmp_path / ".hidden").exists()
    assert (tmp_path / "a.lock").exists()
    assert kept_files.give_back(tmp_path / "kept") == []


def test_what_cannot_be_given_back_stays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("old")
    change = """if True:
        import os, pathlib
        from hvd_keras._common import kept_files
        kept_files.begin(pathlib.Path("kept"))
        os.remove("file")
        os.mkdir("file")
        pathlib.Path("file/new.lock").touch()
    """
    subprocess.run([sys.executable, "-c", change], cwd=tmp_path, check=True)
    (tmp_path / "kept" / "torn.data").write_text("o")  # its process was killed

    (text,) = kept_files.give_back(tmp_path / "kept")

    (copy,) = (tmp_path / "kept").glob("*.data")
    assert str(copy) in text
    assert copy.read_text() == "old"


_BEFORE = """
import tensorflow as tf
checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=1)
manager.save()
checkpoint.save("checkpoints/one")
for name in "text", "removed", "moved", "checkpoints/other":
    tf.io.write_file(name, "old")
with tf.io.TFRecordWriter("records") as writer:
    writer.write(b"old")
tf.saved_model.save(checkpoint, "saved")
"""
_AFTER = """
import pathlib
from hvd_keras._common import kept_files
kept_files.begin(pathlib.Path("kept"))
import keras
import numpy as np
import tensorflow as tf
import tensorflow.saved_model  # another module than `tf.saved_model`, once
checkpoint = tf.train.Checkpoint(v=tf.Variable(2.0))
manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=1)
manager.save()
manager.save()  # removes the first
checkpoint.save("checkpoints/one")
checkpoint.write("checkpoints/two")
tf.saved_model.save(checkpoint, "saved")
with tf.io.TFRecordWriter("records") as writer:
    writer.write(b"new")
tf.summary.create_file_writer(".").close()
pathlib.Path("of_somebody_else").symlink_to("text")  # what no hook hears of
with tf.summary.create_file_writer("own/logs").as_default():
    tf.summary.scalar("a", 1.0, step=0)
tf.io.write_file("text", "no name of a file\\0")
with tf.io.gfile.GFile("file", "w") as file:
    file.write("new")
tf.io.gfile.makedirs("deep/folder")
tf.io.gfile.remove("removed")
tf.io.gfile.rename("moved", "there")
tf.data.Dataset.range(3).save("rows")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard("logs")
model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[board])
model.export("exported", verbose=False)
model.save_weights("model.weights.h5")
model.save("model.keras")
"""


def test_what_libraries_write_is_as_before(tmp_path: pathlib.Path) -> None:
    def found() -> dict[str, bytes | None]:
        return {
            str(path): path.read_bytes() if path.is_file() else None
            for path in tmp_path.rglob("*")
            if path.relative_to(tmp_path).parts[0] != "kept"
        }

    subprocess.run([sys.executable, "-c", _BEFORE], cwd=tmp_path, check=True)
    before = found()
    subprocess.run([sys.executable, "-c", _AFTER], cwd=tmp_path, check=True)
    assert len(found()) > len(before) + 10

    assert kept_files.give_back(tmp_path / "kept") == []

    somebody_else = tmp_path / "of_somebody_else"
    assert somebody_else.is_symlink()
    somebody_else.unlink()
    assert found() == before
