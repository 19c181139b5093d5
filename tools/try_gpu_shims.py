"""Builds the GPU shim with the headers of several versions of TensorFlow.

    python tools/try_gpu_shims.py 2.18.1 2.19.1 2.20.0

For each version it downloads the wheel (250 MB), unpacks the headers into a
temporary folder, compiles the shim and loads it. It does not run the shim: that
takes a GPU.
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


def try_version(version: str, folder: pathlib.Path) -> None:
    """Builds the shim of one version in `folder`."""
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
    major, minor = map(int, version.split(".")[:2])
    target = folder / gpu_shim.path((major, minor)).name
    # The flags of tf.sysconfig.get_compile_flags.
    flags = [
        f"-I{folder / _INCLUDE}",
        "-D_GLIBCXX_USE_CXX11_ABI=1",
        "--std=c++17",
        "-DEIGEN_MAX_ALIGN_BYTES=64",
    ]
    build(target, flags)
    print(f"TensorFlow {version}: {target.name}", flush=True)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for version in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            try_version(version, pathlib.Path(folder))


if __name__ == "__main__":
    main()
