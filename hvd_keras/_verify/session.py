"""What one process of `hvdrun --verify` records, and when it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hvd_keras import _native, basics
from hvd_keras._backends.options import path_of
from hvd_keras._keras import calls, models
from hvd_keras._verify.records import Writer
from hvd_keras._verify.telling import digests, fills, leaves_of, tell

# All calls of `fit` together take this many times the steps that are asked for.
_MAX_FITS = 3
_MAX_EPOCHS = 2
# Ten times what rounding does to a gradient, in parts of its largest element:
# so what it turns, it turns more often.
_NUDGE = 2e-5


class Session:
    """The records of this process.

    Args:
        path: Where they go.
        num_steps: Steps to compare, of each `fit` or loop.
    """

    def __init__(self, path: Path, num_steps: int, nudge: int = 0) -> None:
        self._num_steps = num_steps
        self._nudge = nudge
        self._has_ended = False
        self._lock = threading.Lock()
        # While a step of Keras is traced or runs.
        self.is_in_step = False
        self._num_draws = 0
        # On JAX, those that a step begins with.
        self.states: dict[int, Any] = {}
        self.at_step_end: list[Callable[[], None]] = []
        self._num_rows: Any = None  # of the batch, as far as its shape says
        self.num_calls = 0  # of `fit` and its kin, in each other
        self.begin(path)

    def begin(self, path: Path) -> None:
        """Begins records in another file, as if nothing had happened."""
        self.name = path.name
        self._writer = Writer(path)
        self._step = 0
        self._num_reductions: dict[str, int] = {}
        self._num_fit_steps = 0
        self._noted: set[str] = set()
        self._seen: dict[int, tuple[str, Any]] = {}
        self._writer.add("note", "process", backend=keras.backend.backend())

    def note(self, what: str, **facts: Any) -> None:
        """Notes something about the script, once."""
        text = f"{what} {sorted(facts.items())}"
        if text not in self._noted:
            self._noted.add(text)
            self._writer.add("note", what, **facts)

    # ---- A step ----

    @contextlib.contextmanager
    def keras_step(self, model: Any, data: Any, state: Any) -> Any:
        """Records what a training step of Keras begins with.

        Args:
            model: The model.
            data: The batch.
            state: On JAX, the state of the model; else None.
        """
        self._begin(model, data, state)
        shapes: list[Any] = [leaf.shape for _, leaf in leaves_of(data)]
        self._num_rows = next((each[0] for each in shapes if len(each)), None)
        others = model.non_trainable_variables
        values = state[1] if state else []
        self.states = dict(zip(map(id, others), values, strict=False))
        before, self.is_in_step = self.is_in_step, True
        self._num_draws = 0
        try:
            yield
            for call in self.at_step_end:
                call()
        finally:
            self.states, self.at_step_end = {}, []
            self.is_in_step = before

    def next_draw(self) -> int:
        """Returns a seed for the next random numbers of a step."""
        holder: Any = self
        if not self.is_in_step and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            if tf.inside_function():
                holder = tf.compat.v1.get_default_graph()
        number = getattr(holder, "_num_draws", 0) + 1
        holder._num_draws = number
        return int(number)

    def is_of_rows(self, shape: Any) -> bool:
        """Whether numbers of a shape are one for each row of the batch."""
        if not self.is_in_step and keras.backend.backend() != "tensorflow":
            return False  # the shapes of a loop do not tell what are rows
        first = shape[0] if len(shape) else 0
        return not isinstance(first, int) or first == self._num_rows

    def draw(self, name: str, state: int) -> None:
        """Records what random numbers are drawn from, before that.

        Args:
            name: That of the generator.
            state: A digest of its state.
        """
        if (self.num_calls and not self.is_in_step) or _is_in_dataset():
            return  # in `evaluate`, or while data are made
        if models.is_symbolic():  # a model is being built
            return
        if calls.has_front() and not self.is_in_step:
            return  # all ranks make the same data
        self.add_draw(name, state)

    def add_draw(self, name: str, state: int) -> None:
        """Does so whatever runs now."""
        self._writer.add(
            "draws", name, {"state": np.int64(state)}, step=self._step
        )

    def _note_precision(self) -> None:
        # Not before a step: Keras would keep the policy that it is asked for.
        compute = str(keras.config.dtype_policy().compute_dtype)
        self.note("precision", half="16" in compute)

    def _begin(self, model: Any, data: Any, state: Any) -> None:
        self._note_precision()
        leaves = leaves_of(data)
        names = [name for name, _ in leaves]

        def told(*arrays: Any) -> None:
            if self.num_calls:
                self._step += 1
            else:
                self._count("train_on_batch")
            self._add_rows(names, arrays, type(model).__name__)

        tell(told, [leaf for _, leaf in leaves])
        if not model.built:
            return
        trainable, others, rest = (state or [None, None, None])[:3]
        self._tell_weights("trained", model.trainable_variables, trainable)
        self._tell_weights("state", model.non_trainable_variables, others)
        optimizer = getattr(model, "optimizer", None)
        variables = getattr(optimizer, "variables", None) or []
        places = [
            index
            for index, variable in enumerate(variables)
            if variable.path.endswith("learning_rate")
        ]
        self._tell_weights(
            "rate",
            [variables[place] for place in places],
            None if rest is None else [rest[place] for place in places],
        )

    def _add_rows(
        self, names: list[str], arrays: Sequence[Any], model: str
    ) -> None:
        by_name = dict(zip(names, arrays, strict=True))
        weights = [a for n, a in by_name.items() if n.startswith("sample_w")]
        keep: Any = slice(None)
        if weights and np.ndim(weights[0]):
            keep = ~fills(np.asarray(weights[0]))
            if keep.all():
                keep = slice(None)
        rows = {}
        num_rows = len(keep) if not isinstance(keep, slice) else None
        for name, array in by_name.items():
            if name.startswith("sample_weight"):
                continue
            found = digests(np.asarray(array))
            whole = num_rows in (None, len(found))
            rows[name] = found[keep] if whole else found
        self._writer.add("rows", "batch", rows, step=self._step, model=model)

    def _tell_weights(
        self, key: str, variables: Sequence[Any], values: Any
    ) -> None:
        chosen = [
            (path_of(variable), variable if values is None else values[index])
            for index, variable in enumerate(variables)
            if "seed_generator" not in path_of(variable)
        ]
        if not chosen:
            return
        names = _unique([name for name, _ in chosen])

        def told(*arrays: Any) -> None:
            found = dict(zip(names, arrays, strict=True))
            self._writer.add("weights", key, found, step=self._step)

        tell(told, [value for _, value in chosen])

    def loss(self, key: str, value: Any) -> None:
        """Records the loss of a batch of this process."""
        if getattr(value, "shape", None) is None:
            return

        def told(array: Any) -> None:
            self._writer.add("loss", key, {"loss": array}, step=self._step)

        tell(told, [value])

    # ---- Gradients ----

    def own_gradients(
        self, label: str, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Records this process's gradients before they are reduced."""
        in_step = self.is_in_step
        names = _names_of(variables)

        def told(*arrays: Any) -> None:
            if not in_step:
                self._count(label)
            found = dict(zip(names, arrays, strict=True))
            self._writer.add("own", label, found, step=self._step)

        if not in_step:
            for name, variable in zip(names, variables, strict=True):
                self._seen[id(variable)] = (name, variable)
        tell(told, gradients)
        trained = [v for v in variables if _is_variable(v)]
        if not in_step and len(trained) == len(names):
            self._tell_weights(label, trained, None)

    def gradients(
        self,
        label: str,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        **facts: Any,
    ) -> None:
        """Records the gradients after they were reduced."""
        names = _names_of(variables)
        self._note_precision()

        def told(*arrays: Any) -> None:
            found = dict(zip(names, arrays, strict=True))
            self._writer.add(
                "gradients", label, found, step=self._step, **facts
            )

        tell(told, gradients)

    def nudged(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients as more rounding might leave them, if asked to."""
        if not self._nudge:
            return list(gradients)
        return [_nudged(gradient, self._nudge) for gradient in gradients]

    def _count(self, label: str) -> None:
        """Counts a step of a loop that Keras does not run."""
        number = self._num_reductions.get(label, 0) + 1
        if number > self._num_steps:
            self.finish()
        if number > max(self._num_reductions.values(), default=0):
            self._step += 1
        self._num_reductions[label] = number

    # ---- Calls of Keras ----

    def steps_left(self) -> int:
        """Returns how many steps a `fit` that begins may take."""
        left = _MAX_FITS * self._num_steps - self._num_fit_steps
        return max(0, min(self._num_steps, left))

    def fit_callback(self) -> Any:
        """Returns a callback that ends a `fit` after some steps."""
        return _Limit(self, self.steps_left())

    def count_fit_steps(self, number: int) -> None:
        self._num_fit_steps += number

    def results(self, key: str, values: dict[str, Any]) -> None:
        """Records numbers or arrays that Keras returned."""
        arrays = {
            name: np.asarray(value)
            for name, value in values.items()
            if np.asarray(value).dtype.kind in "biuf"
        }
        self._writer.add("results", key, arrays, step=self._step)

    def weights_after(self, model: Any) -> None:
        """Records the weights of a model that `fit` has trained."""
        kinds = {
            "trained": model.trainable_variables,
            "state": model.non_trainable_variables,
        }
        for kind, variables in kinds.items():
            self._tell_weights(f"{kind} after fit", variables, None)

    # ---- The end ----

    def at_exit(self) -> None:
        """Records what a loop has left in its variables."""
        if self._has_ended or keras.backend.backend() == "jax":
            return
        chosen = [(n, v) for n, v in self._seen.values() if _is_variable(v)]
        names = _unique([name for name, _ in chosen])
        with contextlib.suppress(Exception):

            def told(*arrays: Any) -> None:
                found = dict(zip(names, arrays, strict=True))
                self._writer.add("weights", "end", found, step=self._step)

            tell(told, [variable for _, variable in chosen])

    def finish(self) -> None:
        """Ends the process when all ranks have come here, with status 0.

        It works in the middle of a step and on any thread: nothing of the
        script runs after this.
        """
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._writer.add("note", "stopped", step=self._step)
                if basics.is_initialized():
                    with contextlib.suppress(Exception):
                        if basics.size() > 1:
                            _native.core().barrier("hvd_keras.verify.end")
                        basics.shutdown()
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(Exception):
                        stream.flush()
                os._exit(0)


class _Limit(keras.callbacks.Callback):
    """Ends a `fit` after some steps or epochs, and records its logs."""

    def __init__(self, session: Session, num_steps: int) -> None:
        super().__init__()
        self._session = session
        self._num_steps = num_steps
        self._num_done = self._num_epochs = self._last = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._num_done += batch - self._last
        self._session.count_fit_steps(batch - self._last)
        self._last = batch
        if self._num_done >= self._num_steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._session.results("fit", dict(logs or {}))
        self._num_epochs += 1
        if self._num_epochs >= _MAX_EPOCHS:
            self.model.stop_training = True


def _is_in_dataset() -> bool:
    """Whether a function of a `tf.data.Dataset` is traced."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    if tf.executing_eagerly():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:
        if (getattr(graph, "name", "") or "").startswith("Dataset_"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _nudged(gradient: Any, number: int) -> Any:
    """Returns a gradient that differs in its last digits, as `number` says."""
    if hasattr(gradient, "dense_shape"):
        return type(gradient)(
            _nudged(gradient.values, number),
            gradient.indices,
            gradient.dense_shape,
        )
    if 0 in tuple(gradient.shape):
        return gradient
    ops = keras.ops
    # The number of slices of an embedding may not be known.
    largest = ops.max(ops.abs(gradient))
    is_zero = ops.cast(ops.equal(largest, 0), gradient.dtype)
    pattern = ops.sin(gradient / (largest + is_zero) * 1e3 + number)
    return gradient + _NUDGE * largest * pattern


def _is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable) or hasattr(value, "assign")


def _names_of(variables: Sequence[Any]) -> list[str]:
    return _unique(
        [path_of(v) if _is_variable(v) else "gradient" for v in variables]
    )


def _unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result
