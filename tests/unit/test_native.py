"""A missing TensorFlow or library of ours raises a clear error."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import types

import pytest
import tensorflow as tf

from hvd_keras import _native
from hvd_keras._native import libraries


@pytest.fixture(autouse=True)
def _fresh():
    _native.ops.cache_clear()
    yield
    _native.ops.cache_clear()


def test_raises_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="pip install tensorflow-cpu"):
        _native.ops()


def test_raises_for_an_old_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.SimpleNamespace(__version__="2.15.1", __file__="there")
    monkeypatch.setitem(sys.modules, "tensorflow", old)
    with pytest.raises(ImportError, match=r"2\.16 or newer.*2\.15\.1"):
        _native.ops()


def test_raises_when_the_ops_are_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    library = tmp_path / "libhvd_tf.so"
    monkeypatch.setattr(libraries, "_OPS_LIBRARY", library)
    with pytest.raises(ImportError, match=r"pip install \.") as raised:
        _native.ops()
    assert str(library) in str(raised.value)


def test_tries_an_op_with_an_unknown_tensorflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(libraries, "NEWEST_TENSORFLOW", (2, 15))
    _native.ops()
    assert tf.__version__ in caplog.text


def test_core_needs_no_tensorflow() -> None:
    code = (
        "import sys; from hvd_keras import _native; _native.core();"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
