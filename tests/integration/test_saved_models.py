"""Models saved by a distributed run load in a process without hvd_keras."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import jobs
import pytest
from selection import thorough_except

HERE = pathlib.Path(__file__).parent


def link_packages(folder: pathlib.Path) -> None:
    """Links all installed packages but hvd_keras into a folder."""
    folder.mkdir()
    for package in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if "hvd_keras" not in package.name and package.suffix != ".pth":
            (folder / package.name).symlink_to(package)


def words_of_file(path: pathlib.Path) -> str:
    """What a loader without hvd_keras reads of a model."""

    def without_ours(value: dict) -> dict:
        value.pop("hvd_keras", None)
        return value

    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json")
    return json.dumps(json.loads(config, object_hook=without_ours))


@pytest.mark.parametrize(
    "backend", thorough_except(["tensorflow", "jax", "torch"], "tensorflow")
)
def test_saved_models_load_without_hvd_keras(
    backend: str, tmp_path: pathlib.Path
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environ = jobs.clean_environ(KERAS_BACKEND=backend)
    script = HERE / "saved_models_rank.py"
    command = [sys.executable, str(script), str(tmp_path)]
    job = jobs.run(*("-np", "2", "--", *command), seconds=400, environ=environ)
    assert job.status == 0, job.stderr
    files = sorted(tmp_path.glob("*.keras"))
    for file in files:
        assert "hvd" not in words_of_file(file), file

    link_packages(tmp_path / "packages")
    script = HERE / "saved_models_elsewhere.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, tmp_path / "packages", tmp_path],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    loaded = [line for line in done.stdout.splitlines() if "loaded" in line]
    assert len(loaded) == len(files) > 9
