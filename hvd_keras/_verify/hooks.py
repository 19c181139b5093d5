"""Hooks of a `Session` into Keras and into our own reductions.

They lie around everything that this package and the script replace: a model's
`train_step` and `compute_loss` are wrapped on the model itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras

import hvd_keras
from hvd_keras import prediction
from hvd_keras._common import kept_files
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._gradients.distributed_class import distributed_part
from hvd_keras._gradients.reducer import GradientReducer
from hvd_keras._keras import advice, models
from hvd_keras._keras.lookup import owner_of
from hvd_keras._verify.session import Session


def install(session: Session) -> None:
    """Makes this process record into `session`."""
    replace(
        owner_of("make_train_function"), "make_train_function", _making(session)
    )
    replace(owner_of("fit"), "fit", _fitting(session))
    replace(owner_of("export"), "export", kept_files.exporting)
    for method in ("evaluate", "predict"):
        replace(owner_of(method), method, _calling(session, method))
    reducing = _reducing(session)(GradientReducer.__call__)
    GradientReducer.__call__ = reducing  # type: ignore[method-assign]
    advice.at_other_loss.add(lambda text: session.note("loss", text=text))
    prediction.predict = _predicting(session)(prediction.predict)
    vars(hvd_keras)["predict"] = prediction.predict
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        from hvd_keras import gradient_tape

        tape: Any = gradient_tape._DistributedTape
        tape.gradient = _taping(session)(tape.gradient)
        replace(tf, "function", _without_xla(session))


def _reducing(session: Session) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        @functools.wraps(original)
        def reduce(
            self: Any, gradients: Any, variables: Any, *args: Any, **kw: Any
        ) -> Any:
            gradients, label = list(gradients), self._label
            session.own_gradients(label, gradients, variables)
            reduced = original(self, gradients, variables, *args, **kw)
            local_ids = kw.get("local_ids", ())
            session.gradients(
                label,
                reduced,
                variables,
                op=self._options.op.name,
                factor=kw.get("factor", 1.0),
                has_local=bool(local_ids),
            )
            return session.nudged(reduced)

        return reduce

    return around


def _taping(session: Session) -> Any:
    def around(original: Any) -> Any:
        @as_it_is
        def gradient(self: Any, target: Any, *args: Any, **kw: Any) -> Any:
            targets = keras.tree.flatten(target)
            if len(targets) == 1 and targets[0].shape.rank == 0:
                session.loss("tape", targets[0])
            return original(self, target, *args, **kw)

        return gradient

    return around


# ---- The steps of Keras ----


def _making(session: Session) -> Any:
    def around(original: Any) -> Any:
        def make_train_function(self: Any, *args: Any, **kw: Any) -> Any:
            _wrap_model(session, self)
            return original(self, *args, **kw)

        return make_train_function

    return around


def _wrap_model(session: Session, model: Any) -> None:
    own = vars(model)
    if "_hvd_verified" in own:
        return
    own["_hvd_verified"] = True
    _describe(session, model)
    if keras.backend.backend() == "tensorflow" and model.jit_compile is True:
        model.jit_compile = False
        session.note("without_xla", model=type(model).__name__)
    train_step = model.train_step

    @as_it_is
    def recorded_step(*args: Any) -> Any:
        state = args[0] if len(args) > 1 else None
        _note_local_updates(session, model)
        with session.keras_step(model, args[-1], state):
            return train_step(*args)

    inner = own.get("compute_loss")

    @functools.wraps(model.compute_loss)
    @as_it_is
    def recorded_loss(*args: Any, **kw: Any) -> Any:
        # Looked up now: hooks may come after this one.
        compute = inner or functools.partial(type(model).compute_loss, model)
        loss = compute(*args, **kw)
        if session.is_in_step:
            session.loss("model", loss)
        return loss

    own["train_step"] = functools.wraps(train_step)(recorded_step)
    own["compute_loss"] = recorded_loss


def _describe(session: Session, model: Any) -> None:
    """Notes whose methods train a model."""
    kind = type(model)
    own = {
        name: _definer(kind, name)
        for name in ("train_step", "compute_loss", "compute_metrics")
    }
    optimizer = getattr(model, "optimizer", None)
    optimizers = {"apply": "", "apply_gradients": ""}
    if optimizer is not None:
        base = getattr(type(optimizer), "hvd_base", type(optimizer))
        optimizers = {name: _definer(base, name) for name in optimizers}
    losses = [
        getattr(loss, "__name__", type(loss).__name__)
        for loss in keras.tree.flatten(getattr(model, "loss", None))
        if loss is not None
    ]
    session.note(
        "model",
        model=kind.__name__,
        own=own,
        optimizer=optimizers,
        losses=losses,
        has_regularizers=any(
            getattr(layer, "activity_regularizer", None) is not None
            for layer in _layers_of(model)
        ),
    )


def _note_local_updates(session: Session, model: Any) -> None:
    """Notes whether the ranks reduce their gradients in some steps only."""
    for part in map(distributed_part, models.optimizers_of(model)):
        if part is None or part.hvd_settings.local_updates is None:
            continue
        if part.hvd_step_set.size() != hvd_keras.size():
            every = part.hvd_settings.local_updates.every
            session.note("local_updates", every=every)


def _layers_of(model: Any) -> list[Any]:
    flatten = getattr(model, "_flatten_layers", None)
    return list(flatten()) if callable(flatten) else []


def _definer(kind: type, name: str) -> str:
    """Returns the user's class that defines a method; "" if it is Keras."""
    for each in kind.__mro__:
        if name in vars(each):
            module = each.__module__.split(".")[0]
            return "" if module in ("keras", "hvd_keras") else each.__name__
    return ""


def _without_xla(session: Session) -> Any:
    """Leaves XLA out of functions that are made from now on.

    A program of XLA cannot call Python.
    """

    def around(original: Any) -> Any:
        def function(*args: Any, **kw: Any) -> Any:
            if kw.pop("jit_compile", None):
                session.note("without_xla", model="tf.function")
            return original(*args, **kw)

        return function

    return around


# ---- Calls of Keras ----


@contextlib.contextmanager
def _inside(session: Session) -> Iterator[bool]:
    """Yields whether no other call of these runs."""
    session.num_calls += 1
    try:
        yield session.num_calls == 1
    finally:
        session.num_calls -= 1


def _fitting(session: Session) -> Any:
    def around(original: Any) -> Any:
        signature = inspect.signature(original)

        def fit(self: Any, *args: Any, **kw: Any) -> Any:
            with _inside(session) as is_first:
                if not is_first:
                    return original(self, *args, **kw)
                if not session.steps_left():
                    session.finish()
                given = signature.bind(self, *args, **kw).arguments
                callbacks = given.get("callbacks")
                limit = session.fit_callback()
                if isinstance(callbacks, keras.callbacks.CallbackList):
                    callbacks.append(limit)
                else:
                    given["callbacks"] = [
                        *keras.tree.flatten(callbacks or []),
                        limit,
                    ]
                model = given.pop("self")
                result = original(model, **given)
                session.weights_after(self)
                return result

        return fit

    return around


def _calling(session: Session, method: str) -> Any:
    def around(original: Any) -> Any:
        def call(self: Any, *args: Any, **kw: Any) -> Any:
            with _inside(session) as is_first:
                result = original(self, *args, **kw)
                if is_first:
                    session.results(method, _named(result))
                return result

        return call

    return around


def _predicting(session: Session) -> Any:
    def around(original: Any) -> Any:
        @functools.wraps(original)
        def predict(*args: Any, **kw: Any) -> Any:
            with _inside(session) as is_first:
                result = original(*args, **kw)
                if is_first and result is not None:
                    session.results("hvd.predict", _named(result))
                return result

        return predict

    return around


def _named(result: Any) -> dict[str, Any]:
    if isinstance(result, dict):
        return {str(name): value for name, value in result.items()}
    flat = keras.tree.flatten(result)
    return {str(index): value for index, value in enumerate(flat)}
