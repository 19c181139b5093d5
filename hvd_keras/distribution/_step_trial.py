"""Tries a training step that the script has written, on all rows and in parts.

All ranks take the step on the same rows of small numbers, as one process would,
and then each on its own share of them. Collectives run as ever: what the step
takes of all ranks, such as the statistics of `BatchNormalization`, is as one
process has it. The mean of the shares' gradients is that of the whole batch if
the loss is a mean over rows, whoever has written it and wherever. Afterwards
all variables have their values back.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models, random_streams
from hvd_keras._keras.specs import made
from hvd_keras._keras.steps import own_method_of
from hvd_keras._values.agreement import Check, together
from hvd_keras.data._counts import Counts
from hvd_keras.distribution import _draws
from hvd_keras.exceptions import HvdError

Array = np.ndarray[Any, Any]
_NOT_TRIED = (
    "%s takes no batch of a few rows, so it was not tried whether its "
    "gradients and logs are means over rows. `hvdrun --verify --distribute` "
    "compares its first steps with those of one process."
)
# The gradients of each update, by variable, and the logs.
_Result = tuple[list[list[Array]], dict[str, float]]
_Run = Callable[[Any], _Result]
_T = TypeVar("_T")

_ROWS_OF_RANK = 2
_LARGEST_BATCH = 50_000_000  # elements
_SAMPLES = 1000  # of a gradient
# Of the largest gradient of an update, or of a log.
_TOLERANCE = 2e-3
_TOLERANCE_OF_HALF = 0.05
# So much a row is changed, to see what rounding may do to a gradient.
_CHANGE = 1e-5
_NOISE = 3.0


def try_step(
    model: Any, call: keras_calls.Call, restore: Callable[[], None]
) -> tuple[bool | None, list[str]]:
    """Tries the `train_step` of a model whose `fit` runs. All ranks call it.

    It knows nothing of a step that draws random numbers, or that takes no batch
    of such a size.

    Args:
        model: The model.
        call: Its `fit`.
        restore: Gives what the script keeps in Python its values back.

    Returns:
        Whether gradients are means over rows, None if it is unknown, and the
        names of logs that are none. Known on rank 0.
    """
    drawn = _draws.num_drawn()
    rounds: list[tuple[Any, Any, Any]] = []

    def anew(run: _Run, batch: Any) -> _Result:
        try:
            return run(batch)
        finally:
            restore()

    def prepare() -> _Run | None:
        # By chance a loss may seem to be a mean, but not each time.
        rounds.extend(_batches(call.data_specs, seed) for seed in (0, 1000))
        specs = call.data_specs
        if isinstance(specs, tuple | list) and len(specs) > 1:
            rounds.append(_batches(specs, 0, labels=(1,)))
        whole, _, share = rounds[0]
        if _num_elements(whole) > _LARGEST_BATCH:
            return None
        make = _MAKERS[keras.backend.backend()]
        return make(model, call, [whole, share])

    with _in_a_trial(model, call):
        run = _unless_it_fails(prepare)
        if not all(_of_ranks(run is not None)) or run is None:
            return _unknown(model)
        # What fails with these rows does so on all ranks.
        results = _unless_it_fails(
            lambda: [[anew(run, each) for each in some] for some in rounds]
        )
    of_ranks = _of_ranks(results)
    if None in of_ranks:
        return _unknown(model)
    if _draws.num_drawn() > drawn:  # that is told there
        return None, []
    found = [_compared(model, *each) for each in zip(*of_ranks, strict=True)]
    verdicts = [is_right for is_right, _ in found]
    # Where all are 0 or 1, roots and logarithms may have no gradient.
    if verdicts[2:] == [None]:
        verdicts.pop()
    is_right = _all(verdicts)
    return is_right, list({name: None for _, logs in found for name in logs})


def _unknown(model: Any) -> tuple[None, list[str]]:
    if basics.rank() == 0:
        log.info(_NOT_TRIED % own_method_of(model, training=True))
    return None, []


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """Returns False if any is; None if there is none, or one is unknown."""
    known = set(verdicts)
    if False in known:
        return False
    return True if known == {True} else None


def _unless_it_fails(function: Callable[[], _T]) -> _T | None:
    """Returns what a function does; a step may take no such batch."""
    try:
        return function()
    except HvdError:
        raise
    except Exception:
        return None


def _batches(
    specs: Any, seed: int, labels: Sequence[int] = ()
) -> tuple[Any, Any, Any]:
    """Returns all rows, all changed a little, and the share of this rank."""
    size = basics.size()
    rows = np.arange(_ROWS_OF_RANK * size)
    own = np.split(rows, size)[basics.rank()]
    whole, share = (
        made(specs, len(rows), each, seed, labels) for each in (rows, own)
    )
    return whole, keras.tree.map_structure(_changed_a_little, whole), share


def _changed_a_little(value: Any) -> Any:
    if not keras.backend.is_float_dtype(getattr(value, "dtype", "int32")):
        return value
    numbers = np.random.default_rng(0).uniform(-1.0, 1.0, value.shape)
    factors = keras.ops.convert_to_tensor(1.0 + _CHANGE * numbers, value.dtype)
    return value * factors


def _of_ranks(value: Any) -> list[Any]:
    def exchange() -> Check:
        of_ranks = yield value
        return of_ranks

    (of_ranks,) = together("distribute/step", [exchange()])
    return list(of_ranks)


# ---- What was found ----


def _compared(
    model: Any, *of_ranks: list[_Result]
) -> tuple[bool | None, list[str]]:
    """Compares the whole batch, that changed, and the share, of each rank."""
    alone, changed, _ = of_ranks[0]
    shares = [share for _, _, share in of_ranks]
    means = [
        [np.mean(each, axis=0) for each in zip(*update, strict=True)]
        for update in zip(*(gradients for gradients, _ in shares), strict=True)
    ]
    rows = zip(alone[0], changed[0], means, strict=True)
    is_right = _all(itertools.starmap(_agree, rows))
    if is_right is False:
        return False, []
    known = {*model.get_metrics_result(), *(m.name for m in model.metrics)}
    logs = []
    for name, value in alone[1].items():
        mean = np.mean([of_rank.get(name, np.nan) for _, of_rank in shares])
        three = value, changed[1][name], mean
        values = ([np.array(each)] for each in three)
        if name.rpartition("/")[2] not in known and _agree(*values) is False:
            logs.append(name)
    return is_right, logs


def _agree(
    alone: list[Array], changed: list[Array], means: list[Array]
) -> bool | None:
    """Whether gradients of an update are equal but for rounding.

    It is unknown if they are no numbers, or all 0, or if a small change of the
    rows does as much to them.

    Args:
        alone: Those of the whole batch.
        changed: Those of rows that are changed a little: how much gradients
            differ by rounding, or because the step draws random numbers.
        means: The mean of those of the shares.
    """
    if not all(np.isfinite(each).all() for each in (*alone, *means)):
        return None
    largest = max((np.max(np.abs(g), initial=0.0) for g in alone), default=0.0)
    noise, gap = (
        max(
            (
                np.max(np.abs(one - two), initial=0.0)
                for one, two in zip(alone, others, strict=True)
            ),
            default=0.0,
        )
        for others in (changed, means)
    )
    is_half = "16" in keras.config.dtype_policy().compute_dtype
    tolerance = _TOLERANCE_OF_HALF if is_half else _TOLERANCE
    if gap > tolerance * largest + _NOISE * noise + 1e-9:
        return False
    return True if largest > 0.0 and gap <= tolerance * largest else None


def _result_of(gradients: list[list[Any]], logs: Any) -> _Result:
    samples = [[_sample(each) for each in update] for update in gradients]
    arrays = {name: _array(value) for name, value in _flat(logs)}
    return samples, {k: float(v) for k, v in arrays.items() if not v.ndim}


def _flat(logs: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of logs: a compiled metric has a dict of them."""
    for name, value in logs.items() if isinstance(logs, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _sample(gradient: Any) -> Array:
    flat = _array(gradient).ravel()
    return flat[:: -(-flat.size // _SAMPLES) or 1]


def _array(value: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(value), np.float64)


def _num_elements(batch: Any) -> int:
    shapes = (getattr(x, "shape", ()) for x in keras.tree.flatten(batch))
    return sum(int(np.prod(shape)) for shape in shapes)


# ---- What surrounds it ----


@contextlib.contextmanager
def _in_a_trial(model: Any, call: keras_calls.Call) -> Iterator[None]:
    """A context in which steps know equally many rows, and draw nothing."""
    noise = [
        (layer, name, vars(layer)[name])
        for layer in model._flatten_layers()
        if ".layers.regularization." in type(layer).__module__
        for name in ("rate", "stddev")
        if name in vars(layer)
    ]
    rows = call.rows
    counts = Counts(basics.size(), _ROWS_OF_RANK, rest=0)
    call.rows = keras_calls.Rows(counts, may_fill=False)
    for layer, name, _ in noise:
        vars(layer)[name] = 0.0
    try:
        with random_streams.kept():
            yield
    finally:
        for layer, name, value in noise:
            vars(layer)[name] = value
        call.rows, call.at_gradients = rows, None


@contextlib.contextmanager
def _kept(model: Any) -> Iterator[None]:
    """Gives what a step changes its values back."""
    optimizers = models.optimizers_of(model)
    found = [*model.variables, *model.metrics_variables]
    found += [each for one in optimizers for each in one.variables]
    variables = list({id(each): each for each in found}.values())
    before = [keras.ops.copy(each.value) for each in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


# ---- Backends ----


def _eager(model: Any, call: keras_calls.Call, batches: list[Any]) -> _Run:
    def note(update: list[Any]) -> None:
        gradients.append([_sample(each) for each in update])

    gradients: list[list[Array]] = []

    def run(batch: Any) -> _Result:
        gradients.clear()
        call.at_gradients = note
        with _kept(model):
            logs = model.train_step(batch)
        return [*gradients], _result_of([], logs)[1]

    return run


def _of_torch(model: Any, call: keras_calls.Call, batches: list[Any]) -> _Run:
    step = _eager(model, call, batches)

    def run(batch: Any) -> _Result:
        buffers = [(each, each.clone()) for each in model.buffers()]
        gradients = [
            (each, None if each.grad is None else each.grad.clone())
            for each in model.parameters()
        ]
        try:
            return step(batch)
        finally:
            for each, value in buffers:
                each.copy_(value)
            for each, value in gradients:
                each.grad = value

    return run


def _of_tensorflow(
    model: Any, call: keras_calls.Call, batches: list[Any]
) -> _Run:
    if model.run_eagerly:
        return _eager(model, call, batches)
    import tensorflow as tf

    def step(batch: Any) -> Any:
        gradients: list[list[Any]] = []
        call.at_gradients = gradients.append
        logs = model.train_step(batch)
        dense = [list(map(tf.convert_to_tensor, some)) for some in gradients]
        return dense, logs

    signature = keras.tree.map_structure(_of_any_rows, batches[0])
    was_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # a `tf.function` inside is a part
    try:
        traced = tf.function(step, autograph=False).get_concrete_function(
            signature
        )
    finally:
        tf.config.run_functions_eagerly(was_eager)
    # All that it may change, also what Keras does not know.
    variables = {
        id(handle): (handle, handle._handle_data.shape_and_type[0].dtype)
        for handle in traced.captured_inputs
        if handle.dtype == tf.resource
        and getattr(handle, "_handle_data", None) is not None
        and handle._handle_data.is_set
        and handle._handle_data.shape_and_type
    }

    def run(batch: Any) -> _Result:
        before = [
            (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
            for handle, dtype in variables.values()
        ]
        try:
            return _result_of(*traced(batch))
        finally:
            for handle, value in before:
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    return run


def _of_any_rows(value: Any) -> Any:
    import tensorflow as tf

    if not tf.is_tensor(value):
        return value
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _of_jax(model: Any, call: keras_calls.Call, batches: list[Any]) -> _Run:
    import jax

    def step(state: Any, batch: Any) -> Any:
        gradients: list[list[Any]] = []
        call.at_gradients = gradients.append
        logs, _ = model.train_step(state, batch)
        return gradients, logs

    # A step changes nothing but its state.
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    programs = {
        _num_elements(batch): jax.jit(step).lower(state, batch).compile()
        for batch in batches
    }

    def run(batch: Any) -> _Result:
        return _result_of(*programs[_num_elements(batch)](state, batch))

    return run


_MAKERS = {
    "jax": _of_jax,
    "tensorflow": _of_tensorflow,
    "torch": _of_torch,
}
