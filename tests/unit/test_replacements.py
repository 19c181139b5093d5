"""All that we replace in other packages has a row in one table."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hvd_keras
from hvd_keras._common import replacements
from hvd_keras._common.replacement_table import Row
from hvd_keras._common.replacements import replace

PACKAGE = Path(hvd_keras.__file__).parent
OTHERS = ("keras", "tensorflow", "jax", "torch")

# What sets attributes by names that are not constant: of our own objects.
SETS_ITS_OWN = {
    "_common/lazy.py",
    "_common/replacements.py",
    "elastic/state.py",
    "spark/estimator.py",
}
# These are attributes of one object that the user has made.
OF_INSTANCES = {"data/_counts.py", "data/position.py"}


class Owner:
    def method(self, x: int) -> int:
        """Returns the next number."""
        return x + 1


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[Row]:
    home = __name__.partition(".")[2]
    row = Row(f"{__name__}.Owner", "method new", home, "", "")
    monkeypatch.setattr(replacements, "TABLE", (row,))
    yield row
    for one in replacements.replacements():
        if one.row is row:
            one.restore()


def doubling(original: Any) -> Any:
    def wrapper(self: Owner, *args: int) -> int:
        return 2 * int(original(self, *args))

    return wrapper


def test_a_replacement_keeps_signature_and_text(row: Row) -> None:
    original = Owner.method
    replace(Owner, "method", doubling)
    assert Owner().method(3) == 8
    assert inspect.signature(Owner.method) == inspect.signature(original)
    assert inspect.getdoc(Owner.method) == "Returns the next number."
    (one,) = (r for r in replacements.replacements() if r.row is row)
    assert (one.owner, one.name, one.original) == (Owner, "method", original)


def test_a_second_call_does_nothing(row: Row) -> None:
    replace(Owner, "method", doubling)
    replace(Owner, "method", functools.partial(doubling))
    assert Owner().method(3) == 8


def test_what_is_restored_is_as_before(row: Row) -> None:
    before = dict(vars(Owner))
    replace(Owner, "method", doubling)
    replace(Owner, "new", lambda original: original)
    assert vars(Owner) != before
    for one in replacements.replacements():
        if one.row is row:
            one.restore()
    assert dict(vars(Owner)) == before


def test_what_somebody_else_put_there_is_not_restored(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(Owner, "method", doubling)
    monkeypatch.setattr(Owner, "method", len)
    (one,) = (r for r in replacements.replacements() if r.row is row)
    one.restore()
    assert Owner.method is len


def test_what_has_no_row_is_refused(row: Row) -> None:
    with pytest.raises(LookupError, match=r"`Owner\.__repr__`.*no row"):
        replace(Owner, "__repr__", doubling)
    assert "__repr__" not in vars(Owner)


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in PACKAGE.rglob("*.py"):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_theirs(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a module or class of another package."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        return called in ("owner_of", "private_module", "_owner")
    return _root(node) in names


def _theirs(tree: ast.AST) -> set[str]:
    """Returns the names that imports give to what other packages have."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = getattr(node, "module", None)
            for alias in node.names:
                if (home or alias.name).partition(".")[0] in OTHERS:
                    names.add(alias.asname or alias.name.partition(".")[0])
    return names


def _scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """Yields the nodes of each function, then those outside of functions."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(ast.walk(node))
            yield list(ast.walk(node))
    yield [node for node in ast.walk(tree) if node not in inside]


def _assigned(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Returns `names` and the variables that hold what these name."""
    found = set(names)
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_theirs(node.value, found):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def _targets(node: ast.AST) -> list[ast.expr]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    flat: list[ast.expr] = []
    for target in targets:
        is_many = isinstance(target, ast.Tuple | ast.List)
        flat += target.elts if is_many else [target]  # type: ignore[attr-defined]
    return [t.value for t in flat if isinstance(t, ast.Attribute)]


def test_no_file_sets_an_attribute_of_another_package() -> None:
    """An object that was made by a call is no class or module."""
    for path, tree in sources():
        for nodes in _scopes(tree):
            names = _assigned(nodes, _theirs(tree))
            for node in nodes:
                for owner in _targets(node):
                    assert not _is_theirs(owner, names), (
                        path,
                        ast.unparse(node),
                    )


def test_few_files_set_attributes_by_name() -> None:
    found = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("setattr", "delattr", "type.__setattr__")
    }
    assert found == SETS_ITS_OWN | OF_INSTANCES


def test_each_row_has_its_home_and_says_why() -> None:
    for row in replacements.TABLE:
        assert (PACKAGE / f"{row.home.replace('.', '/')}.py").exists(), row
        assert all(row), row


USED = """
import importlib
import hvd_keras as hvd
import keras
import test_replacements as tests

hvd.init()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer("sgd"), "mse", metrics=["mae"])
rows = keras.ops.zeros((2, 1))
average = hvd.callbacks.MetricAverageCallback()
model.fit(rows, rows, verbose=0, callbacks=[average])
if keras.backend.backend() == "tensorflow":
    hvd.HvdStrategy()
    importlib.import_module("hvd_keras.compat.keras2").install()
replaced, found = tests.replaced_here(), tests.found_here()
assert replaced == found, replaced ^ found
assert len(found) > 20, found
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_nothing_else_is_replaced(backend: str) -> None:
    pytest.importorskip(backend)
    subprocess.run(
        [sys.executable, "-c", USED],
        cwd=Path(__file__).parent,
        env={**os.environ, "KERAS_BACKEND": backend},
        check=True,
        timeout=240,
    )


def replaced_here() -> set[str]:
    """Returns what is replaced in this process by code of ours."""
    return {
        f"{_path(one.owner)}.{one.name}"
        for one in replacements.replacements()
        if _is_ours(one.made)
    }


def _path(owner: Any) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"


def found_here() -> set[str]:
    """Returns all attributes of other packages whose code is ours."""
    owners: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OTHERS and module is not None:
            owners[id(module)] = module
            for value in list(vars(module).values()):
                if issubclass(type(value), type):  # not a lazy module
                    owners[id(value)] = value
    return {
        f"{_path(owner)}.{name}"
        for owner in owners.values()
        for name, value in list(vars(owner).items())
        if _path(owner).partition(".")[0] in OTHERS and _is_ours(value)
    }


def _is_ours(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if not isinstance(value, types.FunctionType):
        return False
    # `tf.autograph.experimental.do_not_convert` wraps ours.
    while not value.__code__.co_filename.startswith(str(PACKAGE)):
        value = getattr(value, "__wrapped__", None)
        if not isinstance(value, types.FunctionType):
            return False
    return True
