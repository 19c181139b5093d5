"""Makes this process a part of `hvdrun --verify`."""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
from pathlib import Path
from typing import Any

import hvd_keras
from hvd_keras._common import kept_files, verification
from hvd_keras._common.replacements import replace
from hvd_keras._common.when_imported import call_when_imported
from hvd_keras._verify.records import NUDGED
from hvd_keras.config import Config

_session: Any = None


def begin() -> None:
    """Prepares this process, as soon as Keras is imported."""
    config = Config.from_environ(os.environ)
    num_ranks = config.verify_ranks
    verification.begin(config.verify_steps, num_ranks or 1)
    if num_ranks is not None:
        # Internal callers ask `basics.size()`: there is one process.
        public: Any = vars(hvd_keras)
        public["size"] = lambda: importlib.import_module(
            "hvd_keras.basics"
        ).size_of_job()
        public["size_op"] = _size_op
    name = f"rank{config.rank or 0}"
    if num_ranks is not None:
        number = config.verify_nudge
        name = f"{NUDGED}{number}" if number else "one"
    path = Path(config.verify or "") / name
    kept_files.begin(path.with_name("kept"))
    call_when_imported(
        {
            "tensorflow": lambda: _seed_tensorflow(20000 + (config.rank or 0)),
            "keras": lambda: _record(path, config.verify_nudge),
        }
    )


def running() -> Any:
    """Returns the session of this process."""
    return _session


def _size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    import tensorflow as tf

    return tf.constant(verification.num_merged(), tf.int32, name=name)


def _record(path: Path, nudge: int) -> None:
    global _session
    from hvd_keras._verify import draws, frozen, hooks
    from hvd_keras._verify.session import Session

    if path.with_suffix(".jsonl").exists():  # a child of that process
        path = path.with_name(f"child{os.getpid()}")
    _session = Session(path, verification.num_steps(), nudge)
    hooks.install(_session)
    frozen.install(_session)
    draws.install(_session)
    atexit.register(_session.at_exit)


def _seed_tensorflow(seed: int) -> None:
    """Seeds what TensorFlow draws without any seed, and that alone.

    `tf.random.set_seed` would also change what `shuffle(seed=1)` does, which
    must be the same on all ranks.
    """
    random_seed: Any = importlib.import_module(
        "tensorflow.python.framework.random_seed"
    )
    numbers = itertools.count(1)

    def around(original: Any) -> Any:
        def get_seed(op_seed: int | None) -> Any:
            found = original(op_seed)
            none = all(each is None for each in found)
            return (seed, next(numbers)) if none else found

        return get_seed

    replace(random_seed, "get_seed", around)
