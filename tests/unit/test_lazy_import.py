from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_keras

_HEAVY = {"tensorflow", "keras", "numpy", "absl"}


def _run(code: str) -> set[str]:
    """Returns the modules that `code` loads in a new process."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return set(done.stderr.split())


def test_import_brings_in_nothing_heavy() -> None:
    assert not _run("import hvd_keras") & {
        *_HEAVY,
        "asyncio",
        "multiprocessing",
    }


def test_the_launcher_brings_in_nothing_heavy() -> None:
    assert not _run("import hvd_keras.run.__main__") & _HEAVY


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_the_parts_for_other_systems_bring_in_nothing_heavy(name: str) -> None:
    loaded = _run(f"import hvd_keras.{name}")
    assert not loaded & {*_HEAVY, "ray", "pyspark"}
    package = importlib.import_module(f"hvd_keras.{name}")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_topology_and_errors_bring_in_nothing_heavy() -> None:
    code = "import hvd_keras; hvd_keras.PeerLostError; hvd_keras.rank"
    assert not _run(code) & _HEAVY


def test_init_does_not_bring_in_tensorflow() -> None:
    pytest.importorskip("hvd_keras._core")
    code = "import hvd_keras; hvd_keras.init(); assert hvd_keras.size() == 1"
    assert not _run(code) & {"tensorflow", "keras"}


# Python, where TensorFlow is not installed.
_WITHOUT_TENSORFLOW = """
import importlib.machinery, os, sys
os.environ["KERAS_BACKEND"] = {backend!r}
find = importlib.machinery.PathFinder.find_spec

class Finder:
    @staticmethod
    def find_spec(name, *args):
        return None if name == "tensorflow" else find(name, *args)

at = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[at] = Finder
import hvd_keras as hvd
for name in hvd.__all__:
    try:
        getattr(hvd, name)
    except ModuleNotFoundError as error:
        print(name, error)
hvd.init()
hvd.barrier()
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_needs_tensorflow_says_what_to_use_instead(backend: str) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("hvd_keras._core")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW.format(backend=backend)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert told["allreduce"] == (
        "`hvd.allreduce` needs TensorFlow, which is not installed. Use "
        "`hvd_keras.torch.allreduce` or `hvd_keras.jax.allreduce`, or install "
        "it. See docs/backends.md."
    )
    for text in told.values():
        assert "needs TensorFlow" in text
        assert "Use `" in text
    assert not {"barrier", "shard", "DistributedOptimizer"} & set(told)
    for text in told.values():
        for module, name in re.findall(r"`hvd_keras\.(\w+)\.(\w+)`", text):
            package = importlib.import_module(f"hvd_keras.{module}")
            assert hasattr(package, name)


def test_all_is_sorted_and_lists_every_public_name() -> None:
    names = hvd_keras.__all__
    assert list(names) == sorted(names)
    modules = {"callbacks", "data", "elastic", "exceptions", "run"}
    homes = set(hvd_keras._HOME_OF) | modules | {"__version__"}
    assert set(names) == homes
    assert set(names) <= set(dir(hvd_keras))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(hvd_keras.__file__).read_text())
    seen = {"__version__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == (
            "TYPE_CHECKING"
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.alias):
                    seen.add(part.name)
    assert seen == set(hvd_keras.__all__)


def test_all_names_can_be_used() -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("hvd_keras._core")
    for name in hvd_keras.__all__:
        assert getattr(hvd_keras, name) is not None, name
    # Loading a module of that name must not replace it.
    assert callable(hvd_keras.broadcast)
    assert callable(hvd_keras.allreduce)
    assert callable(hvd_keras.run)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'all_reduce'"):
        _ = hvd_keras.all_reduce
