"""Unmodified Horovod programs run under `hvdrun --horovod-compat`."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import jobs
import pytest
from selection import thorough_except

_ROOT = str(Path(__file__).parents[2])
PROGRAMS = Path(__file__).parent / "horovod_programs"


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=pytest.mark.thorough), 2]
)
@pytest.mark.parametrize(
    "program",
    thorough_except(
        [
            *("keras_fit", "custom_loop", "tf1_session"),
            *("tf1_reference_variables", "torch_loop"),
        ],
        *("keras_fit", "torch_loop"),
    ),
)
def test_horovod_program_runs_and_learns(
    program: str, num_ranks: int, tmp_path: Path
) -> None:
    job = jobs.run(
        *("-np", str(num_ranks), "--horovod-compat", "--"),
        *(sys.executable, str(PROGRAMS / f"{program}.py"), str(tmp_path)),
        seconds=120,
        environ=jobs.clean_environ(),
    )
    assert job.status == 0, job.stderr[-4000:]
    for rank in range(num_ranks):
        assert "loss fell: True" in job.lines(rank)


@pytest.mark.thorough
def test_a_saved_graph_can_be_imported_before_any_collective(
    tmp_path: Path,
) -> None:
    program = str(PROGRAMS / "tf1_reference_variables.py")
    saving = jobs.run(
        *("-np", "1", "--horovod-compat", "--"),
        *(sys.executable, program, str(tmp_path)),
        seconds=120,
        environ=jobs.clean_environ(),
    )
    assert saving.status == 0, saving.stderr[-4000:]
    importing = jobs.run_python(
        1,
        f"""
        import horovod.tensorflow as hvd
        import tensorflow.compat.v1 as tf
        tf.disable_v2_behavior()
        path = {str(tmp_path / "model.ckpt-150")!r}
        saver = tf.train.import_meta_graph(path + ".meta")
        with tf.Session() as session:
            saver.restore(session, path)
            names = {{op.type for op in session.graph.get_operations()}}
            print("HorovodGroupedAllreduce" in names)
        """,
        "--horovod-compat",
        seconds=60,
    )
    assert importing.lines(0) == ["True"], importing.stderr


@pytest.mark.thorough
def test_the_flag_reaches_the_children_of_a_rank() -> None:
    job = jobs.run_python(
        1,
        """
        import subprocess, sys
        code = "import horovod; print(horovod.__version__)"
        subprocess.run([sys.executable, "-c", code], check=True)
        """,
        "--horovod-compat",
    )
    assert job.lines(0) == ["0.28.1"], job.stderr


def test_ranks_find_their_place_under_horovods_names() -> None:
    job = jobs.run_python(
        2,
        """
        import os
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"
        print(*[os.environ["HOROVOD_" + name] for name in names.split()])
        """,
        "--horovod-compat",
    )
    for rank in range(2):
        assert job.lines(rank) == [f"{rank} 2 {rank} 2 0 1"], job.stderr


def test_without_the_flag_horovod_cannot_be_imported() -> None:
    job = jobs.run_python(1, "import horovod")
    assert job.status == 1
    assert "No module named 'horovod'" in job.stderr


def test_importing_compat_is_enough_without_the_flag() -> None:
    job = jobs.run_python(
        1,
        """
        import hvd_keras.compat.horovod
        import horovod.keras as hvd
        import horovod.tensorflow.keras.callbacks as callbacks
        try:
            hvd.rank()
        except ValueError as error:
            print(str(error).partition(".")[0])
        hvd.init()
        print(hvd.size(), hvd.callbacks is not None)
        print(callbacks.MetricAverageCallback.__name__)
        """,
        seconds=60,
    )
    assert job.lines(0) == [
        "Horovod has not been initialized",
        "1 True",
        "MetricAverageCallback",
    ], job.stderr


def test_a_torch_program_needs_neither_keras_nor_tensorflow() -> None:
    job = jobs.run_python(
        1,
        """
        import importlib.util, sys
        class Refusing:  # torch looks whether they are there
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("keras", "tensorflow"):
                    return importlib.util.spec_from_loader(name, self)
            def create_module(self, spec):
                raise ImportError(spec.name)
            def exec_module(self, module):
                pass
        sys.meta_path.insert(0, Refusing())
        import hvd_keras.compat.horovod
        import horovod.torch as hvd
        import horovod.torch.elastic.state
        import horovod.torch.functions, horovod.torch.optimizer
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.util import check_extension, gpu_available
        from horovod.torch.compression import Compression
        from horovod.torch.sync_batch_norm import SyncBatchNorm
        check_extension("horovod.torch", "X", "X")
        hvd.init()
        import hvd_keras.torch as ours
        names = [name for name in ours.__all__ if not hasattr(hvd, name)]
        print(hvd.size(), gpu_available("torch"), names)
        """,
        seconds=60,
    )
    assert job.lines(0) == ["1 False ['Compressor']"], job.stderr


@pytest.mark.thorough
def test_a_horovod_that_is_loaded_already_is_refused(tmp_path: Path) -> None:
    (tmp_path / "horovod.py").write_text("")
    job = jobs.run_python(
        1,
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import horovod
        import hvd_keras.compat.horovod
        """,
        seconds=60,
    )
    assert job.status == 1
    assert "must be imported before `horovod`" in job.stderr


_DRIVER = """
import subprocess, sys
import horovod.runner
from horovod.runner.elastic.discovery import FixedHosts
assert "tensorflow" not in sys.modules
assert sys.argv[1:] == ["-v", "x"], sys.argv
assert horovod.run is horovod.runner.run
assert FixedHosts({"a": 2}).find_available_hosts_and_slots() == {"a": 2}
code = "import horovod; print(horovod.__version__, flush=True)"
subprocess.run([sys.executable, "-c", code], check=True)

def place():
    import os
    import horovod
    return os.environ["HOROVOD_RANK"], horovod.__version__

print(horovod.run(place, num_proc=2), sys.flags.dont_write_bytecode)
"""


def _lines_of(*command: str, folder: Path) -> list[str]:
    """Returns what Python prints with these arguments, in a folder."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["script", "module", "first line"])
def test_a_driver_finds_horovod_and_so_do_its_ranks(
    how: str, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(_DRIVER)
    command = ["-B", "-m", "hvd_keras.compat", str(driver)]
    if how == "module":
        command[-1:] = ["-m", "driver"]
    elif how == "first line":
        driver.write_text("import hvd_keras.compat.horovod\n" + _DRIVER)
        command = ["-B", str(driver)]
    version = "0.28.1"
    ranks = [(str(rank), version) for rank in range(2)]
    lines = _lines_of(*command, "-v", "x", folder=tmp_path)
    assert lines == [version, f"{ranks} 1"]


def test_horovodrun_is_there_for_whoever_replaces_the_path(
    tmp_path: Path,
) -> None:
    told = "import horovod; print(horovod.__version__)"
    code = (
        "import os, subprocess, sys\n"
        "os.environ['PYTHONPATH'] = '.'\n"
        f"ranks = ['-np', '2', sys.executable, '-c', {told!r}]\n"
        "subprocess.run(['horovodrun', *ranks], check=True)\n"
    )
    lines = _lines_of("-m", "hvd_keras.compat", "-c", code, folder=tmp_path)
    assert sorted(lines) == ["[0] 0.28.1", "[1] 0.28.1"]


def test_an_environment_has_horovod_for_all_programs(tmp_path: Path) -> None:
    # Neither PYTHONPATH nor PATH leads there: programs replace both.
    venv.create(tmp_path / "venv", symlinks=True)
    bin_folder = tmp_path / "venv" / "bin"
    python = str(bin_folder / "python")
    told = "import horovod; print(horovod.__version__)"

    def run(*command: str, path: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            command,
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    installed = os.pathsep.join([_ROOT, sysconfig.get_path("purelib")])
    manage = [python, "-m", "hvd_keras.compat"]
    done = run(*manage, "--install", path=installed)
    assert done.returncode == 0, done.stderr
    assert "horovodrun" in done.stdout
    assert run(python, "-c", told, path=installed).stdout == "0.28.1\n"
    launch = [str(bin_folder / "horovodrun"), "-np", "2", python, "-c", told]
    done = run(*launch, path=installed)
    assert sorted(done.stdout.splitlines()) == ["[0] 0.28.1", "[1] 0.28.1"]

    assert run(*manage, "--uninstall", path=installed).returncode == 0
    done = run(python, "-c", told, path=installed)
    assert "ModuleNotFoundError" in done.stderr
    assert not (bin_folder / "horovodrun").exists()

    # Horovod's own package is left alone.
    package = tmp_path / "own" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    own = os.pathsep.join([str(package.parent), installed])
    done = run(*manage, "--install", path=own)
    assert done.returncode == 1
    assert f"Horovod itself is installed, in {package}" in done.stderr
