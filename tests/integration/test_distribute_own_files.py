"""Files that a script writes and removes by itself: one rank does it."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import jobs

OWN = """
import atexit, json, logging, os, pathlib, shutil
os.chdir({folder!r})
logging.basicConfig(filename="job.log", level="INFO", format="%(message)s")
logging.info("begins")
if os.path.exists("table.csv"):
    os.remove("table.csv")
with open("table.csv", "w") as file:
    file.write("epoch\\n")
shutil.rmtree("old", ignore_errors=True)
os.makedirs("old")
pathlib.Path("old/new.txt").write_text("new")
import keras, numpy as np
for word in "one", "two":
    with open("table.csv", "a") as file:
        file.write(word + "\\n")
class Notes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.file = open("epochs.txt", "w", encoding="ascii")
    def on_epoch_end(self, epoch, logs=None):
        self.file.write(f"{{epoch}}\\n")
        logging.info("epoch")
        with open("later.txt", "a") as file:
            file.write(f"{{epoch}}\\n")
        with open("newest.json", "w") as file:
            json.dump({{"epoch": epoch}}, file)
        with open("newest.json") as file:
            assert json.load(file)["epoch"] == epoch
    def on_train_end(self, logs=None):
        self.file.close()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((12, 2)), np.ones(12)
for _ in range(2):
    model.fit(*rows, epochs=2, verbose=0, callbacks=[Notes()])
with pathlib.Path("later.txt").open("a") as file:
    file.write("end\\n")
own = f"of_{{os.getpid()}}.txt"
for _ in range(2):
    with open(own, "a") as file:
        file.write("mine\\n")
assert pathlib.Path(own).read_text() == "mine\\n" * 2
atexit.register(logging.info, "ends")
"""


def test_one_rank_writes_the_files_of_the_script(
    tmp_path: pathlib.Path,
) -> None:
    """Also what was there before, and is made anew by each."""
    (tmp_path / "old").mkdir()
    (tmp_path / "table.csv").write_text("of yesterday\n")
    own = tmp_path / "tmp"
    own.mkdir()
    job = jobs.run_python(
        3, OWN.format(folder=str(tmp_path)), "--distribute", TMPDIR=str(own)
    )
    assert job.status == 0, job.stderr[-3000:]
    assert not list(own.glob("hvd-turn-*"))
    lines = (tmp_path / "job.log").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("hvd_keras")]
    assert lines == ["begins", *["epoch"] * 4, "ends"]
    for name, text in {
        "table.csv": "epoch\none\ntwo\n",
        "epochs.txt": "0\n1\n",
        "later.txt": "0\n1\n0\n1\nend\n",
        "newest.json": '{"epoch": 1}',
        "old/new.txt": "new",
    }.items():
        assert (tmp_path / name).read_text() == text, name
    each = [*tmp_path.glob("of_*.txt")]
    assert [path.read_text() for path in each] == ["mine\n" * 2] * 3


REMOVED = """
import os, pathlib, shutil
os.chdir({folder!r})
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for path in "old.txt", "model.keras":
    if os.path.exists(path):
        os.remove(path)
shutil.rmtree("results")
os.makedirs("results")
os.rename("log.txt", "log.txt.1")
with open("log.txt", "w") as file:
    file.write("new")
for number in range(2):  # a file that is not for long
    with open("part", "w") as file:
        file.write("whole")
    assert pathlib.Path("part").read_text() == "whole"
    os.replace("part", f"results/{{number}}.txt")
    shutil.move(f"results/{{number}}.txt", "results/last.txt")
for target in "results", "log.txt":
    if os.path.lexists("latest"):
        os.unlink("latest")
    os.symlink(target, "latest")
try:
    pathlib.Path("latest").symlink_to("results")
except FileExistsError:
    print("linked", flush=True)
model.fit(np.ones((12, 2)), np.ones(12), verbose=0)
assert pathlib.Path("latest").read_text() == "new"
model.save("model.keras")
os.mkdir("cache")
pathlib.Path("cache/rows").write_text("rows")
model.predict(np.ones((12, 2)), verbose=0)
os.unlink("latest")
if os.path.exists("cache"):
    shutil.rmtree("cache")
os.remove("model.keras")
pathlib.Path("empty").rmdir()
for _ in range(2):  # the second time is an error on each rank
    try:
        open("lock", "x").close()
    except FileExistsError:
        print("locked", flush=True)
for _ in range(2):
    try:
        os.remove("lock")
    except FileNotFoundError:
        print("unlocked", flush=True)
for remove in os.remove, shutil.rmtree, os.rmdir:
    try:
        remove("model.keras")
    except FileNotFoundError:
        print("gone", flush=True)
"""


def test_what_a_rank_removes_is_removed_for_all(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old").touch()
    (tmp_path / "empty").mkdir()
    for name in "old.txt", "model.keras":
        (tmp_path / name).touch()
    (tmp_path / "log.txt").write_text("old")
    code = REMOVED.format(folder=str(tmp_path))
    job = jobs.run_python(3, code, "--distribute", "--show-ranks", "0,1,2")
    assert job.status == 0, job.stderr[-3000:]
    assert job.stdout.count("linked") == 3
    assert job.stdout.count("gone") == 9
    assert job.stdout.count("unlocked") == 3
    assert job.stdout.count("locked") == 6  # in both words
    found = {
        str(path.relative_to(tmp_path)): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert found == {
        "log.txt": "new",
        "log.txt.1": "old",
        "results/last.txt": "whole",
    }
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "empty").exists()


KNOWS_RANKS = """
import os
import keras
# By HVD_RANK
os.chdir({folder!r})
with open("all.txt", "a") as file:
    file.write(os.environ["HVD_RANK"])
"""


def test_a_script_that_knows_ranks_writes_on_each(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(KNOWS_RANKS.format(folder=str(tmp_path)))
    job = jobs.run(
        "-np", "2", "--distribute", "--", sys.executable, str(script)
    )
    assert job.status == 0, job.stderr[-3000:]
    assert (tmp_path / "all.txt").read_text() == "01"


SEVERAL_HOSTS = """
from hvd_keras._common import log
from hvd_keras.distribution import _own_files
log.configure("info", 0)
_own_files.share()
for _ in range(2):
    with open({path!r}, "a") as file:
        file.write("line\\n")
"""


def test_what_each_host_writes_is_told_once(tmp_path: pathlib.Path) -> None:
    path, script = tmp_path / "log.txt", tmp_path / "script.py"
    script.write_text(SEVERAL_HOSTS.format(path=str(path)))
    names = {
        "HVD_RANK": "0",
        "HVD_SIZE": "2",
        "HVD_LOCAL_RANK": "0",
        "HVD_LOCAL_SIZE": "1",
        "HVD_CROSS_SIZE": "2",
        "HVD_RENDEZVOUS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        check=True,
    )
    assert path.read_text() == "line\n" * 2
    assert done.stderr.count(f"{str(path)!r}: one rank of each of 2 hosts") == 1


AGAIN = """
import os, shutil, zipfile
os.chdir({folder!r})
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((12, 2)), np.ones(12)
for i in range(3):
    model.fit(*rows, verbose=0)
    if os.path.isdir("best"):
        shutil.rmtree("best")
    os.mkdir("best")
    model.save("best/model.keras")
    try:
        os.rmdir("empty")
    except FileNotFoundError:
        assert i == 0
    os.mkdir("empty")
    np.savez("best/rows.npz", rank=int(os.environ["HVD_" "LOCAL_RANK"]), i=i)
    assert np.load("best/rows.npz")["rank"] == 0
    with zipfile.ZipFile("best/all.zip", "w") as archive:
        archive.writestr("name", str(i))
    with open("part.txt", "w") as file:
        file.write(str(i))
    os.replace("part.txt", "best/whole.txt")
    os.makedirs("scratch/deep")
    with open("scratch/deep/one.txt", "w") as file:
        file.write(str(i))
    shutil.rmtree("scratch")
    with open("both.txt", "w+") as file:
        file.write(str(i))
        file.seek(0)
        assert file.read() == str(i)
"""
COUNTED = """
number = len([each for each in os.listdir(".") if each.startswith("run_")])
os.makedirs(f"run_{{number}}/deep")
"""


def test_folders_and_archives_are_made_again(tmp_path: pathlib.Path) -> None:
    code = AGAIN.format(folder=str(tmp_path))
    job = jobs.run_python(3, code, "--distribute", seconds=120)
    assert job.status == 0, job.stderr
    assert "warning of" not in job.stderr
    assert sorted(os.listdir(tmp_path)) == ["best", "both.txt", "empty"]
    assert len(os.listdir(tmp_path / "best")) == 4


def test_a_name_that_one_rank_has_counted_up_is_told(
    tmp_path: pathlib.Path,
) -> None:
    code = (AGAIN + COUNTED).format(folder=str(tmp_path))
    job = jobs.run_python(2, code, "--distribute", seconds=120)
    assert job.status == 0, job.stderr
    (told,) = re.findall("warning of rank 1: (.*)", job.stderr)
    assert "Received: 'run_1' on rank 1 at <string>:" in told
