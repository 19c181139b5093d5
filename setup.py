"""Builds the native libraries with CMake and Ninja.

All metadata is in pyproject.toml. Extra arguments for CMake may be given in
`CMAKE_ARGS`: `CMAKE_ARGS=-DHVD_WERROR=OFF pip install .` builds with a
compiler that warns where ours do not. `HVD_GPU_SHIMS` may name a folder of GPU
shims that go into the wheel: `make wheels` sets it.

Why not a plugin: that of scikit-build-core (1.1.2 was read) deletes CMake's
build folder at each run, so `make build` would compile everything before each
test, where it now compiles what has changed; and it leaves it to CMake to say
that a compiler or Python's headers are missing. The rest of what is here
(finding CMake and Ninja; placing the libraries in a wheel, an editable install
or the source tree) it does as well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
from find_tool import find_tool  # noqa: E402

PACKAGE = "hvd_keras"
# Beside the module `_core`.
LIBRARIES = ("libhvd_core.so", "libhvd_tf.so", "libhvd_ffi.so")
MIN_CMAKE = (3, 22)


def has_cmake() -> bool:
    """Whether a CMake that is new enough is there."""
    program = find_tool("cmake")
    if program is None:
        return False
    try:
        run = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False
        )
    except OSError:  # a script of a virtual environment that was moved
        return False
    found = re.search(r"version (\d+)\.(\d+)", run.stdout)
    return found is not None and tuple(map(int, found.groups())) >= MIN_CMAKE


def check_toolchain() -> None:
    """Ends with a message that says what to install, if something lacks."""
    compiler = os.environ.get("CXX", "g++").split()[0]
    if shutil.which(compiler) is None:
        sys.exit(
            f"hvd_keras needs a C++17 compiler. Not found: {compiler!r}. "
            "On Debian and Ubuntu: apt-get install g++ (or set CXX)."
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        sys.exit(
            f"hvd_keras needs the headers of Python. Not found: {header}. "
            "On Debian and Ubuntu: apt-get install python3-dev."
        )


def gpu_shims() -> list[Path]:
    """The libraries of hvd_keras.gpu_shim that go into the wheel."""
    folder = os.environ.get("HVD_GPU_SHIMS")
    return sorted(Path(folder).glob("libhvd_tf_gpu_*.so")) if folder else []


def replace_file(source: Path, target: Path) -> None:
    """Puts `source` at `target` at once: a process may have it mapped."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, temporary)
    os.replace(temporary, target)


def run_ninja(command: list[str]) -> None:
    """Runs `command`; prints a line for each quarter, and what goes wrong.

    Raises:
        subprocess.CalledProcessError: if the command fails.
    """
    start, said = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ninja:
        for line in ninja.stdout or ():
            step = re.match(r"\[(\d+)/(\d+)\] ", line)
            if step is None:
                print(line, end="", flush=True)
                continue
            done, steps = map(int, step.groups())
            quarter = 4 * done // steps
            if quarter > said:
                said = quarter
                built = f"built {done} of {steps} parts"
                seconds = time.monotonic() - start
                print(f"hvd_keras: {built} ({seconds:.0f} s)", flush=True)
    if ninja.returncode:
        raise subprocess.CalledProcessError(ninja.returncode, command)


class CMakeBuild(build_ext):
    """Builds all native files in one CMake run; `_core` stands for them."""

    def build_extensions(self) -> None:
        check_toolchain()
        tree = self._build_tree()
        self._run_cmake(tree)
        built = [tree / "lib" / name for name in self._library_names()]
        for file in [*built, *gpu_shims()]:
            replace_file(file, self._built_package() / file.name)

    def copy_extensions_to_source(self) -> None:
        """Copies the helper libraries too, unlike the inherited method."""
        for name in self._file_names():
            replace_file(self._built_package() / name, ROOT / PACKAGE / name)

    def get_outputs(self) -> list[str]:
        folder = ROOT / PACKAGE if self.inplace else self._built_package()
        return [str(folder / name) for name in self._file_names()]

    def _file_names(self) -> list[str]:
        return [*self._library_names(), *(shim.name for shim in gpu_shims())]

    def _library_names(self) -> list[str]:
        return [f"_core{self._module_suffix()}", *LIBRARIES]

    def _module_suffix(self) -> str:
        """Such as .cpython-312-aarch64-linux-gnu.so.

        SETUPTOOLS_EXT_SUFFIX may name that of another machine.
        """
        return self.get_ext_filename("_core").removeprefix("_core")

    def _built_package(self) -> Path:
        return Path(self.build_lib, PACKAGE)

    @staticmethod
    def _build_tree() -> Path:
        """The same folder every time, so that a rebuild is incremental.

        `_core` alone is built again for another Python.
        """
        return ROOT / "build" / f"cmake-{sysconfig.get_platform()}"

    def _run_cmake(self, tree: Path) -> None:
        import pybind11

        cmake, ninja = find_tool("cmake"), find_tool("ninja")
        if cmake is None or ninja is None:
            sys.exit(
                "hvd_keras needs CMake and Ninja to build. "
                f"Found: cmake={cmake}, ninja={ninja}. "
                "pip install cmake ninja."
            )
        configure = [
            *(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja"),
            # The cache may name the ninja of a build environment that is gone.
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DHVD_PYTHON_INCLUDE_DIR={sysconfig.get_path('include')}",
            f"-DHVD_PYBIND11_INCLUDE_DIR={pybind11.get_include()}",
            f"-DHVD_PYTHON_EXT_SUFFIX={self._module_suffix()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count())
        try:
            subprocess.run(configure, check=True)
            run_ninja([ninja, "-C", str(tree), f"-j{jobs}"])
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"Building hvd_keras failed (exit status {error.returncode}) "
                f"at: {shlex.join(map(str, error.cmd))}. The reason is above."
            )


class CheckedDistInfo(dist_info):
    """pip asks for it before it downloads what the package needs."""

    def run(self) -> None:
        check_toolchain()
        super().run()


class CleanBuildPy(build_py):
    """Starts from an empty package: `build/lib` may hold deleted modules."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, PACKAGE), ignore_errors=True)
        super().run()


setup(
    ext_modules=[Extension(f"{PACKAGE}._core", sources=[])],
    cmdclass={
        "build_ext": CMakeBuild,
        "build_py": CleanBuildPy,
        "dist_info": CheckedDistInfo,
    },
    # Asked for by pip's isolated builds alone.
    setup_requires=[] if has_cmake() else ["cmake>=3.22"],
    zip_safe=False,
)
