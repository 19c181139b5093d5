"""Runs a script that knows nothing of ranks: `hvdrun --distribute`.

Every rank runs the whole script. Generators begin alike, so that all have the
same data and models; Keras's methods share the work; rank 0 alone shows and
saves.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import itertools
import os
import random
import sys
from typing import Any

from hvd_keras._common import log, remarks, training_signs
from hvd_keras._common.replacements import replace
from hvd_keras._common.when_imported import call_when_imported
from hvd_keras.config import read_setting
from hvd_keras.distribution import _folders, _own_files


def begin(mode: str) -> None:
    """Prepares this process, before its script.

    Args:
        mode: "keras": the script uses `keras.distribution`, which this package
            has prepared already; "script": it knows nothing of ranks.
    """
    if mode != "script":
        return
    _folders.share()
    _own_files.share()
    if os.environ.get("HVD_RANK", "0") != "0":
        replace(builtins, "input", _without_lines)
    seed = read_setting(os.environ, "HVD_DISTRIBUTE_SEED")
    random.seed(seed)
    call_when_imported(
        {
            "numpy": lambda: _seed_numpy(seed),
            "tensorflow": lambda: _seed_tensorflow(seed),
            "torch": lambda: _seed_torch(seed),
            "keras": _distribute,
        }
    )


def _without_lines(original: Any) -> Any:
    """Makes `input` say why a rank has no line."""

    def ask(prompt: object = "", /) -> Any:
        try:
            return original(prompt)
        except EOFError:
            raise EOFError(
                "`input()` has no line: standard input goes to rank 0 alone. "
                "Pass what it asks for as an argument of the script, or in "
                "the environment"
            ) from None

    return ask


def _seed_numpy(seed: int) -> None:
    import numpy as np

    np.random.seed(seed)
    generators: Any = importlib.import_module("numpy.random.bit_generator")
    numbers = itertools.count(1)

    def randbits(original: Any) -> Any:
        """Where generators without a seed get one from."""

        def drawn(count: int) -> int:
            text = f"{seed} {next(numbers)}"
            return random.Random(text).getrandbits(count)

        return drawn

    replace(generators, "randbits", randbits)


def _seed_tensorflow(seed: int) -> None:
    import tensorflow as tf

    from hvd_keras._common.seeds import GivenSeed

    tf.random.set_seed(GivenSeed(seed))


def _seed_torch(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _distribute() -> None:
    """Does what a script would do by `keras.distribution`."""
    import keras

    from hvd_keras.distribution import _draws, _files, _keras_api, _turns

    _keras_api.batch_is_global()
    with _turns.beginning():
        keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    _files.share()
    _draws.watch()
    call_when_imported({"tensorflow": _count_looks})
    training_signs.at_first.append(_tell_of_loop)
    atexit.register(_tell_at_end)
    atexit.register(_turns.end)


def _count_looks() -> None:
    from hvd_keras.data import _looks

    _looks.count()


_CURE = (
    "A loop needs `hvd.shard`, and `hvd.DistributedOptimizer` or "
    "`hvd.DistributedGradientTape`, see docs/custom-loops.md."
)


def _tell_of_loop(training: training_signs.Training) -> None:
    """Says at its first step that a loop is not distributed."""
    from hvd_keras import basics

    if not basics.is_initialized() or basics.rank() != 0 or basics.size() == 1:
        return
    is_of_loop = training.what != "`fit`" and not training_signs.place_of_fit
    if is_of_loop and not _reduces(training):
        log.notice(
            f"all {basics.size()} ranks do the same work in this loop: "
            "`--distribute` shares the rows of `fit`, `evaluate` and `predict` "
            f"alone. {_CURE} Received: {training.what} at {training.place}."
        )


def _reduces(training: training_signs.Training | None) -> bool:
    """Whether a script reduces its gradients by itself."""
    is_reducing = training is not None and training.reduces
    return (
        is_reducing
        or training_signs.has_transform
        or "hvd_keras.gradient_tape" in sys.modules
    )


def _tell_at_end() -> None:
    """Says so if nothing was shared."""
    from hvd_keras import basics
    from hvd_keras.distribution import _front

    if not basics.is_initialized() or basics.size() == 1:
        return
    is_told = not _front.has_shared() and not _reduces(training_signs.first)
    if is_told and not hasattr(sys, "last_value"):
        text = (
            f"nothing was distributed: {sys.argv[0]} has called neither "
            f"`fit` nor `evaluate` nor `predict` of a Keras model, and all "
            f"{basics.size()} ranks did the same work. {_CURE}"
        )
        remarks.keep(text, remarks.TRAINS_ALONE)
