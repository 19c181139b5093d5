"""Runs a script that knows nothing of ranks: `hvdrun --distribute`.

Every rank runs the whole script. Generators begin alike, so that all have the
same data and models; Keras's methods share the work; rank 0 alone shows and
saves.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib
import itertools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from hvd_keras._common.replacements import replace
from hvd_keras._common.when_imported import call_when_imported
from hvd_keras.config import read_setting


def begin(mode: str) -> None:
    """Prepares this process, before its script.

    Args:
        mode: "keras": the script uses `keras.distribution`, which this package
            has prepared already; "script": it knows nothing of ranks.
    """
    if mode != "script":
        return
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

    tf.random.set_seed(seed)


def _seed_torch(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _distribute() -> None:
    """Does what a script would do by `keras.distribution`."""
    import keras

    from hvd_keras.distribution import _keras_api

    _keras_api.batch_is_global()
    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    _share_files()
    atexit.register(_tell_at_end)


def _share_files() -> None:
    """Lets rank 0 save models for all, and a host download once."""
    from hvd_keras._keras.lookup import owner_of, private_module

    for method in ("save", "save_weights", "export"):
        replace(owner_of(method), method, _by_rank_0)
    original = private_module("utils.file_utils").get_file
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        is_keras = name.partition(".")[0] == "keras"
        if is_keras and vars(module).get("get_file") is original:
            replace(module, "get_file", _one_at_a_time)


def _by_rank_0(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(*args: Any, **kw: Any) -> None:
        from hvd_keras._keras.calls import running_calls
        from hvd_keras.callbacks._rank_zero import on_rank_zero

        # Callbacks save on the ranks that they choose.
        if running_calls() or not _shares():
            original(*args, **kw)
            return
        name = f"Model.{original.__name__}"
        on_rank_zero(name, lambda: original(*args, **kw))

    return save


def _one_at_a_time(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_file(*args: Any, **kw: Any) -> Any:
        # The next rank of this host finds what the first one has got. A lock
        # may be held for longer than a collective may wait.
        home = os.open(os.path.expanduser("~"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(home, fcntl.LOCK_EX)
            return original(*args, **kw)
        finally:
            os.close(home)

    return get_file


def _shares() -> bool:
    from hvd_keras import basics
    from hvd_keras.distribution import _keras_api

    return basics.is_initialized() and _keras_api.distribution() is not None


def _tell_at_end() -> None:
    """Says so if nothing was shared."""
    from hvd_keras import basics
    from hvd_keras._common import log
    from hvd_keras.distribution import _front

    if not basics.is_initialized() or basics.rank() != 0 or basics.size() == 1:
        return
    if not (_front.has_shared() or hasattr(sys, "last_value")):
        log.warning(
            f"nothing was distributed: {sys.argv[0]} has called neither "
            f"`fit` nor `evaluate` nor `predict` of a Keras model, and all "
            f"{basics.size()} ranks did the same work. A training loop of its "
            "own needs `hvd.shard` and `hvd.DistributedOptimizer`, see 'The "
            "four changes' in README.md."
        )
