"""What a script does to files in a comparison is undone."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from hvd_keras._verify import kept_files

_CHANGES = """
import os, pathlib, shutil, sys
from hvd_keras._verify import kept_files

kept_files.MOST_BYTES = 5
kept_files.begin(pathlib.Path("kept"))
with open("appended", "a") as file:
    file.write("new")
with open("link", "w") as file:
    file.write("new")
os.rename("moved", "over")
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
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    for name in "large", "same_large":
        (tmp_path / name).write_text("old and long")
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    subprocess.run([sys.executable, "-c", _CHANGES], cwd=tmp_path, check=True)
    assert (tmp_path / "appended").read_text() == "oldnew"

    lost = kept_files.give_back(tmp_path / "kept")

    assert lost == [str(tmp_path / "large")]
    for name in files:
        assert (tmp_path / name).read_text() == "old", name
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "made").exists()
    # Caches and locks stay.
    assert (tmp_path / ".hidden").exists()
    assert (tmp_path / "a.lock").exists()
    assert kept_files.give_back(tmp_path / "kept") == []
