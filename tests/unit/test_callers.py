"""`is_of_script` tells what a script does with files from what others do."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

import pytest

from hvd_keras.distribution._callers import FETCHERS, is_of_script

OF_SCRIPT = ("__main__", "train.py")
KERAS = ("keras.src.saving.saving_lib", "/lib/site-packages/keras/saving.py")
GLOB = ("glob", "/lib/python3.11/glob.py")
DATASETS = ("tensorflow_datasets.core", "/lib/site-packages/tfds/core.py")
TORCH = ("torch", "/lib/site-packages/torch/__init__.py")
IMPORT = ("importlib._bootstrap", "<frozen importlib._bootstrap>")


@pytest.mark.parametrize(
    ("callers", "is_own", "is_fetched"),
    [
        ([OF_SCRIPT], True, True),
        ([OF_SCRIPT, ("models.layers", "models/layers.py")], True, True),
        ([OF_SCRIPT, GLOB, GLOB], True, True),
        ([OF_SCRIPT, KERAS], False, False),
        ([OF_SCRIPT, KERAS, GLOB], False, False),
        ([OF_SCRIPT, DATASETS], False, True),
        ([OF_SCRIPT, DATASETS, GLOB], False, True),
        ([OF_SCRIPT, KERAS, DATASETS], False, False),
        ([OF_SCRIPT, IMPORT], False, False),
        ([OF_SCRIPT, IMPORT, TORCH], False, False),
        ([OF_SCRIPT, IMPORT, ("helpers", "helpers.py")], True, True),
        ([OF_SCRIPT, ("helpers", "/elsewhere/helpers.py")], True, True),
        ([("__main__", "/lib/site-packages/tool/main.py")], False, False),
    ],
)
def test_the_first_caller_that_does_not_help_decides(
    callers: list[tuple[str, str]],
    is_own: bool,
    is_fetched: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Paths of frames are relative to where the script has begun.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def called_by(
        caller: tuple[str, str], function: Callable[[], bool]
    ) -> Callable[[], bool]:
        name, path = caller
        home = {"__name__": name, "function": function}
        code = "def call():\n    return function()\n"
        exec(compile(code, path, "exec"), home)
        call: Callable[[], bool] = home["call"]  # type: ignore[assignment]
        return call

    for through, wanted in ((frozenset(), is_own), (FETCHERS, is_fetched)):

        def probe(through: frozenset[str] = through) -> bool:
            return is_of_script(sys._getframe(1), through)

        call: Callable[[], bool] = probe
        for caller in reversed(callers):
            call = called_by(caller, call)
        assert call() is wanted
