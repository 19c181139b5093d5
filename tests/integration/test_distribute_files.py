"""Files of a script that knows nothing of ranks: each comes once."""

from __future__ import annotations

import pathlib
import shutil
import time

import distribute_table
import jobs
import pytest
from selection import thorough_except

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
saving, rank = keras.saving, os.environ["HVD_RANK"]
os.umask(0o22 if rank == "0" else 0o77)  # who writes shows in the mode
for number, save in enumerate((
    model.save,
    lambda path: saving.save_model(model, path),
    lambda path: keras.models.save_model(model, path),
)):
    save(f"{folder}/{{number}}.keras")
for number, save in enumerate(
    (model.save_weights, lambda path: saving.save_weights(model, path))
):
    save(f"{folder}/{{number}}.weights.h5")
model.export(f"{folder}/exported", verbose=False)
for number in range(2):
    np.save(f"{folder}/own{{number}}.{{rank}}.npy", np.ones(3))
found = keras.utils.get_file(
    "text", "file://{folder}/source", cache_dir="{folder}/cache"
)
print("bytes", os.path.getsize(found), flush=True)
"""


def test_files_are_written_and_fetched_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").write_bytes(bytes(1 << 24))
    code = FILES.format(folder=tmp_path)
    job = jobs.run_python(
        3, code, "--distribute", "--show-ranks", "0,1,2", seconds=180
    )
    assert job.status == 0, job.stderr[-3000:]
    lines = [line.partition("] ")[2] for line in job.stdout.splitlines()]
    # What fails on rank 0 fails on all, each time; what follows is right.
    assert sum(line.startswith("refused") for line in lines) == 6
    assert lines.count("saved") == 6
    assert lines.count(f"bytes {1 << 24}") == 3
    assert job.stdout.count("refused HvdError") == 4
    names = {path.name for path in tmp_path.iterdir()}
    shared = {f"{n}.keras" for n in range(3)} | {"exported"}
    shared |= {f"{n}.weights.h5" for n in range(2)}
    for name in shared:
        assert (tmp_path / name).stat().st_mode & 0o44 == 0o44, name
    wanted = {*shared, "model.keras", "source"}
    # What has another name on each rank is written by each.
    wanted |= {f"own{n}.{rank}.npy" for n in range(2) for rank in range(3)}
    assert names == wanted


ENDLESS = """
import keras
import tensorflow as tf
data = keras.ops.ones((9, 1))
model = keras.Sequential([keras.layers.Dense(1)])
print(model.predict(tf.data.Dataset.from_tensors(data).repeat(4)).shape)
"""


def test_whole_data_end_without_a_warning_of_keras() -> None:
    job = jobs.run_python(2, ENDLESS, "--distribute")
    assert job.status == 0, job.stderr[-3000:]
    assert "(36, 1)" in job.stdout
    # Plain Keras has none there, either.
    assert "ran out of data" not in job.stderr


AT_EXIT = """
import atexit, os
def save():
    with open(os.environ["HVD_RANK"], "w") as file:
        file.write("all")
atexit.register(save)  # so it comes after what Keras brings
import keras
"""


def test_files_may_be_written_after_the_end(tmp_path: pathlib.Path) -> None:
    code = f"import os\nos.chdir({str(tmp_path)!r})\n{AT_EXIT}"
    job = jobs.run_python(2, code, "--distribute", "--show-ranks", "0,1")
    assert job.status == 0
    assert "Error" not in job.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["all"] * 2


FOLDERS = """
import os, pathlib
os.chdir({folder!r})
if not os.path.exists("checked"):
    os.makedirs("checked/below")
os.mkdir("made")
import keras
pathlib.Path("images").mkdir()
os.mkdir("lock")
for wrong in ("old", "file", "lock", "images"):
    try:
        os.mkdir(wrong)
    except FileExistsError:
        print("refused", wrong)
os.rmdir("lock")
os.mkdir("lock")
os.rmdir("lock")
try:
    os.rmdir("lock")
except FileNotFoundError:
    print("gone")
"""


def test_ranks_may_make_the_same_folder(tmp_path: pathlib.Path) -> None:
    """Folders of an earlier job, and one's own, are refused as in a process."""
    old = tmp_path / "old"
    old.mkdir()
    (tmp_path / "file").touch()
    # Its time of change is that of the clock alone.
    while time.time() - old.stat().st_ctime < 12.0:
        time.sleep(1.0)
    job = jobs.run_python(
        3, FOLDERS.format(folder=str(tmp_path)), "--distribute"
    )
    assert job.status == 0, job.stderr[-3000:]
    words = ["old", "file", "lock", "images"]
    assert job.stdout.splitlines()[:5] == [f"refused {w}" for w in words] + [
        "gone"
    ]
    assert not (tmp_path / "lock").exists()


UNPACKED = """
import io, os, shutil, sys, tarfile, time, zipfile
import keras, numpy as np
os.chdir({folder!r})
rank = os.environ["HVD_RANK"]

def note(what):
    with open(f"did.{{what}}.{{rank}}", "w"):
        pass

def read(folder):
    found = sorted(os.listdir(folder))
    return sum(int(open(f"{{folder}}/{{name}}").read()) for name in found)

# A look, and then a folder that fills slowly.
if not os.path.exists("slow"):
    os.mkdir("slow")
    for number in range(20):
        time.sleep(0.05)
        with open(f"slow/{{number}}", "w") as file:
            file.write(str(number))
    note("slow")
total = read("slow")
# Archives that each rank unpacks, over what another one may read.
with zipfile.ZipFile("archive.zip") as file:
    file.extractall("unzipped")
total += read("unzipped")
shutil.unpack_archive("archive.tar", "untarred")
total += read("untarred")
found = keras.utils.get_file(
    "archive.tar", "file://{folder}/archive.tar", extract=True, cache_dir="c"
)
total += read(found)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
for again in range(2):
    x = np.full((6, 2), total)
    model.evaluate(x, x[:, :1], verbose=0)
    # Between calls: written by all, and read at once.
    if not os.path.exists(f"later{{again}}.npy"):
        time.sleep(0.2)
        np.save(f"later{{again}}", np.arange(100000))
        note(f"later{{again}}")
    total += int(np.load(f"later{{again}}.npy").sum())
print("total", total, flush=True)
"""


def _run_all_shown(code: str, folder: pathlib.Path) -> jobs.Outcome:
    """Runs 3 ranks in a folder, and shows what all of them print."""
    job = jobs.run_python(
        3,
        code.format(folder=str(folder)),
        "--distribute",
        "--show-ranks",
        "0,1,2",
        seconds=180,
        TMPDIR=str(folder),
    )
    assert job.status == 0, job.stderr[-3000:]
    return job


def test_ranks_make_files_one_after_the_other(tmp_path: pathlib.Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    for number in range(300):
        (whole / str(number)).write_text(str(number))
    for kind in ("zip", "tar"):
        shutil.make_archive(str(tmp_path / "archive"), kind, whole)
    job = _run_all_shown(UNPACKED, tmp_path)
    total = sum(range(20)) + 3 * sum(range(300)) + 2 * sum(range(100000))
    assert job.stdout.count(f"total {total}") == 3
    # What a rank looks for, the first one has made.
    did = {path.name for path in tmp_path.glob("did.*")}
    assert did == {"did.slow.0", "did.later0.0", "did.later1.0"}
    assert not list(tmp_path.glob("hvd-turn*"))


IN_A_LOOP = """
import os
import numpy as np
import keras
import tensorflow as tf
os.chdir({folder!r})
x = tf.constant(np.arange(24.0).reshape(8, 3), tf.float32)
model = keras.Sequential([
    keras.layers.BatchNormalization(), keras.layers.Dense(1),
])
optimizer = keras.optimizers.SGD()

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)

for number in range(3):
    step()
    with open(f"log{{number}}.txt", "w") as file:
        file.write("x")
model.compile("sgd", "mse")
model.fit(x, x[:, :1], verbose=0)
if not os.path.exists("late.npy"):
    np.save("late", np.arange(3))
print("total", np.load("late.npy").sum(), flush=True)
"""


def test_a_collective_of_a_loop_ends_a_turn(tmp_path: pathlib.Path) -> None:
    """Rank 0 waits for moments, and the others for its files."""
    job = _run_all_shown(IN_A_LOOP, tmp_path)
    assert job.stdout.count("total 3") == 3
    assert "have not come" not in job.stderr
    assert not list(tmp_path.glob("hvd-turn*"))


ELSEWHERE = """
import os, pathlib, time
def prepare():
    if not os.path.exists("data"):
        os.mkdir("data")
        time.sleep(2)
        pathlib.Path("data/made").write_text(os.environ["HVD_RANK"])
    return pathlib.Path("data/made").read_text()
"""


def test_modules_of_the_script_may_lie_elsewhere(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("source", "works"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "preparing.py").write_text(ELSEWHERE)
    code = f"""
import os, sys
os.chdir({str(tmp_path / "works")!r})
sys.path.append({str(tmp_path / "source")!r})
import keras, preparing
print("made by", preparing.prepare(), flush=True)
"""
    job = jobs.run_python(2, code, "--distribute", "--show-ranks", "0,1")
    assert job.status == 0, job.stderr
    assert job.stdout.count("made by 0") == 2


OWN_NAMES = """
import keras, numpy as np, os, pathlib, tempfile, time
rank = int(os.environ["HVD_RANK"])
os.chdir({folder!r})
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((6, 2))
folder = tempfile.mkdtemp()
for path in (
    os.path.join(folder, "first.weights.h5"),
    pathlib.Path(f"{{time.time_ns()}}.weights.h5"),
    f"shared-by-{{min(rank, 1)}}.weights.h5",
    "all.weights.h5",
):
    model.fit(x, x[:, :1], verbose=0)
    model.save_weights(path)
    other = keras.models.clone_model(model)
    other.load_weights(path)
    np.testing.assert_array_equal(
        other.get_weights()[0], model.get_weights()[0]
    )
with tempfile.TemporaryDirectory() as folder:
    model.save(os.path.join(folder, "model.keras"))
    keras.models.load_model(os.path.join(folder, "model.keras"))
PATHS = ("no/such.keras", f"no/such{{rank}}.keras", f"{{rank % 2}}/m.keras")
for path in PATHS:
    try:
        keras.saving.save_model(model, path)
        print("saved", flush=True)
    except Exception as error:
        print("refused", type(error).__name__, flush=True)
"""


def test_each_rank_saves_what_it_names_alone(tmp_path: pathlib.Path) -> None:
    """Temporary folders and times of day have other names on each rank."""
    (tmp_path / "0").mkdir()  # rank 1 finds no folder of its own
    job = _run_all_shown(OWN_NAMES, tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.weights.h5"))
    assert len(names) == 3 + 2 + 1  # times, one for two ranks, one for all
    assert names[-2:] == [f"shared-by-{n}.weights.h5" for n in range(2)]
    refused, saved = "refused FileNotFoundError", "saved"
    assert job.lines(0) == [refused, refused, saved]
    assert job.lines(1) == ["refused HvdError", refused, refused]
    assert job.lines(2) == ["refused HvdError", refused, saved]


UNHEARD = """
import ctypes, h5py, keras, numpy as np, os, time, urllib.request
import tensorflow as tf
os.chdir({folder!r})
found = 0
with tf.io.TFRecordWriter("rows.tfrecord") as writer:
    for number in range(50):
        writer.write(b"%d" % number)
        writer.flush()
        time.sleep(0.02)
found += sum(1 for _ in tf.data.TFRecordDataset("rows.tfrecord"))
with h5py.File("rows.h5", "w") as file:
    time.sleep(0.2)
    file["x"] = np.arange(5)
with h5py.File("rows.h5") as file:
    found += len(file["x"])
if not tf.io.gfile.exists("made"):
    tf.io.gfile.makedirs("made")
    for number in range(10):
        time.sleep(0.05)
        with tf.io.gfile.GFile(f"made/{{number}}", "w") as file:
            file.write("1")
    print("made", flush=True)
found += len(tf.io.gfile.glob("made/*"))
urllib.request.urlretrieve("file://{folder}/source", "copy")
found += os.path.getsize("copy")
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
checkpoint = tf.train.Checkpoint(model=model)
for _ in range(20):
    checkpoint.write("state/one")
    tf.saved_model.save(model, "saved")
assert checkpoint.read("state/one") and tf.saved_model.load("saved")
model.compile("sgd", "mse")
model.evaluate(np.ones((6, 64)), np.ones((6, 64)), verbose=0)
# From before the job: read at once, and in no turn.
assert tf.io.gfile.listdir("old") == ["one"]
if os.environ["HVD_RANK"] == "0":
    while not os.path.exists("read"):
        time.sleep(0.05)
else:
    with tf.io.gfile.GFile("old/one") as file:
        file.read()
    ctypes.CDLL(None).creat(b"read", 0o600)  # not heard of
print("found", found, flush=True)
"""


def test_what_no_audit_hook_hears_of_comes_in_turns(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "source").write_bytes(bytes(1 << 24))
    old = tmp_path / "old"
    old.mkdir()
    (old / "one").touch()
    while time.time() - old.stat().st_ctime < 12.0:
        time.sleep(1.0)
    job = jobs.run_python(
        3,
        UNHEARD.format(folder=str(tmp_path)),
        "--distribute",
        "--show-ranks",
        "0,1,2",
        seconds=240,
        TMPDIR=str(tmp_path),
    )
    assert job.status == 0, job.stderr[-3000:]
    assert job.stdout.count(f"found {50 + 5 + 10 + (1 << 24)}") == 3
    assert job.stdout.count("made") == 1


RESUMED = """
import keras, numpy as np, os

keras.config.set_floatx("float64")
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(50, 6))
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")

class Stops(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and os.environ["RUN"] == "first":
            raise SystemExit(3)

callbacks = [Stops(), keras.callbacks.BackupAndRestore(os.environ["BACKUP"])]
history = model.fit(x, y, 16, 4, verbose=0, callbacks=callbacks)
print(history.epoch[0], *history.history["loss"][-2:])
"""


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "torch")
)
def test_a_job_goes_on_in_the_order_of_one_that_ran_through(
    backend: str, tmp_path: pathlib.Path
) -> None:
    outputs = []
    for run in "through", "first", "second":
        folder = tmp_path / ("through" if run == "through" else "again")
        job = jobs.run_python(
            2,
            RESUMED,
            "--distribute",
            seconds=120,
            KERAS_BACKEND=backend,
            JAX_ENABLE_X64="1",
            BACKUP=str(folder),
            RUN=run,
        )
        assert job.status == (3 if run == "first" else 0), job.stderr
        if run != "first":
            outputs.append([float(each) for each in job.stdout.split()])
    (_, *through), (begin, *resumed) = outputs
    assert begin == 2
    assert resumed == pytest.approx(through, rel=1e-7)
