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
