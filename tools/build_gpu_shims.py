"""Builds the GPU shims of several versions of TensorFlow.

    python tools/build_gpu_shims.py build/wheels/shims 2.18.1 2.19.1 2.20.0

For each version it downloads the wheel (250 MB), unpacks the headers into a
temporary folder, compiles the shim with g++ into the given folder and loads it.
It does not run the shim: that takes a GPU. A shim that is newer than its source
stays.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from hvd_keras import gpu_shim
from hvd_keras.gpu_shim.__main__ import build

_INCLUDE = "tensorflow/include/"


def build_shim(version: str, target: pathlib.Path) -> None:
    """Builds the shim of one version of TensorFlow as `target`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        _unpack_headers(version, folder)
        # The flags of tf.sysconfig.get_compile_flags.
        flags = [
            f"-I{folder / _INCLUDE}",
            "-D_GLIBCXX_USE_CXX11_ABI=1",
            "--std=c++17",
            "-DEIGEN_MAX_ALIGN_BYTES=64",
        ]
        build(target, flags)


def _unpack_headers(version: str, folder: pathlib.Path) -> None:
    options = ["-q", "--no-deps", "--no-cache-dir", "-d", str(folder)]
    wanted = f"tensorflow-cpu=={version}"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, wanted], check=True
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        headers = [n for n in archive.namelist() if n.startswith(_INCLUDE)]
        archive.extractall(folder, headers)
    wheel.unlink()


def main(folder: pathlib.Path, versions: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        major, minor = map(int, version.split(".")[:2])
        target = folder / gpu_shim.path((major, minor)).name
        changed = gpu_shim.SOURCE.stat().st_mtime
        if not target.exists() or target.stat().st_mtime < changed:
            build_shim(version, target)
        print(f"TensorFlow {version}: {target.name}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
