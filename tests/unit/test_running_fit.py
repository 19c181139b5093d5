"""We know what runs in Keras, also if others have wrapped its methods."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from hvd_keras import _replacing
from hvd_keras._keras import callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs

ROWS = np.zeros((6, 1))


def compiled(make: Any = keras.Model) -> keras.Model:
    inputs = keras.Input((1,))
    model = make(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def running() -> list[str]:
    return [call.method for call in keras_calls.running_calls()]


class Look(keras.callbacks.Callback):
    """Notes what runs at each kind of event."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        fit = keras_calls.running_fit()
        self.seen["train"] = running()
        self.seen["num_batches"] = keras_epochs.num_batches_of(fit)
        self.seen["is_capped"] = keras_epochs.is_capped(fit)
        list_ = callback_lists.beginning_callback_list()
        self.seen["list"] = self in list_.callbacks

    def on_test_begin(self, logs: Any = None) -> None:
        self.seen["test"] = running()
        self.seen["fit in test"] = keras_calls.running_fit()

    def on_predict_begin(self, logs: Any = None) -> None:
        self.seen["predict"] = running()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen["list later"] = callback_lists.beginning_callback_list()
        self.model.predict(ROWS, verbose=0, callbacks=[self])
        self.seen["epoch"] = running()


SEEN = {
    "train": ["fit"],
    "num_batches": 3,
    "is_capped": False,
    "list": True,
    "test": ["evaluate", "fit"],
    "fit in test": None,
    "predict": ["predict", "fit"],
    "list later": None,
    "epoch": ["fit"],
}


def look(model: keras.Model) -> dict[str, Any]:
    callback = Look()
    model.fit(
        ROWS,
        ROWS,
        2,
        verbose=0,
        callbacks=[callback],
        validation_data=(ROWS[:2], ROWS[:2]),
    )
    assert not running()
    return callback.seen


class OwnFit(keras.Model):
    """Evaluates before it trains."""

    def fit(self, *args: Any, **kw: Any) -> Any:
        self.evaluate(ROWS[:2], ROWS[:2], verbose=0)
        return super().fit(*args, **kw)


@pytest.mark.parametrize("make", [keras.Model, OwnFit])
def test_what_runs_is_known_in_callbacks(make: Any) -> None:
    assert look(compiled(make)) == SEEN


@pytest.mark.parametrize(
    "wraps", [functools.wraps, lambda original: lambda f: f]
)
def test_fit_may_be_wrapped_by_somebody_else(
    monkeypatch: pytest.MonkeyPatch, wraps: Callable[..., Any]
) -> None:
    original = keras.Model.fit

    @wraps(original)
    def fit(self: Any, *args: Any, **kw: Any) -> Any:
        return original(self, *args, **kw)

    monkeypatch.setattr(keras.Model, "fit", fit)
    assert look(compiled()) == SEEN


WRAPPED_BEFORE = """
import keras

original = keras.Model.fit

def fit(self, *args, **kw):
    return original(self, *args, **kw)

keras.Model.fit = fit
import test_running_fit as tests

assert tests.look(tests.compiled()) == tests.SEEN
del keras.Model.fit
assert tests.look(tests.compiled()) == tests.SEEN
"""


@pytest.mark.thorough
def test_fit_may_be_wrapped_before_us() -> None:
    subprocess.run(
        [sys.executable, "-c", WRAPPED_BEFORE],
        cwd=__file__.rpartition("/")[0],
        check=True,
        timeout=120,
    )


WRAPPED_AS = {
    "a partial method": "functools.partialmethod(keras.Model.fit, epochs=1)",
    "an object": "Fit()",
}
WRAPPED_OTHERWISE = """
import functools
import keras

class Fit:
    original = keras.Model.fit

    def __call__(self, model, *args, **kw):
        return Fit.original(model, *args, **kw)

    def __get__(self, model, cls):
        return functools.partial(self, model)

keras.Model.fit = {what}
import test_running_fit as tests

assert tests.look(tests.compiled()) == tests.SEEN
"""


@pytest.mark.parametrize("what", WRAPPED_AS.values(), ids=WRAPPED_AS)
def test_fit_may_be_no_function(what: str) -> None:
    subprocess.run(
        [sys.executable, "-c", WRAPPED_OTHERWISE.replace("{what}", what)],
        cwd=__file__.rpartition("/")[0],
        check=True,
        timeout=120,
    )


def test_a_fit_that_raises_has_ended() -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.call = keras_calls.running_fit()
            raise RuntimeError

    fail = Fail()
    with pytest.raises(RuntimeError):
        compiled().fit(ROWS, ROWS, verbose=0, callbacks=[fail])
    assert not running()
    assert fail.call.epochs is None
    assert fail.call.data is None


def test_callbacks_that_come_while_training_begins_hear_of_it() -> None:
    """Others may come or go meanwhile, so that Keras walks an older list."""
    heard: list[str] = []

    class Late(keras.callbacks.Callback):
        def __init__(self, name: str, follows: Any = None) -> None:
            super().__init__()
            self.name, self.follows = name, follows

        def on_train_begin(self, logs: Any = None) -> None:
            heard.append(self.name)
            if self.follows is not None:
                list_ = callback_lists.beginning_callback_list()
                callback_lists.add_callback(list_, self.follows)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            heard.append(f"{self.name} ends")

    given = [Late("1", Late("3")), Late("2", Late("4"))]
    compiled().fit(ROWS, ROWS, verbose=0, callbacks=given)
    assert heard[:4] == ["1", "2", "3", "4"]
    assert heard[4:] == ["1 ends", "2 ends", "3 ends", "4 ends"]


class Around(keras.callbacks.Callback):
    def hvd_around_fit(
        self, model: Any, fit: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        self.names = list(arguments)
        return fit(**{**arguments, "epochs": 2})


@pytest.mark.parametrize("by_place", [True, False])
def test_a_callback_may_run_the_fit_it_is_given_to(by_place: bool) -> None:
    around = Around()
    places, kw = (ROWS, ROWS, 2, 1, 0), {"callbacks": [around]}
    if by_place:
        history = compiled().fit(*places, *kw.values())
    else:
        history = compiled().fit(*places, **kw)
    names = ["x", "y", "batch_size", "epochs", "verbose", "callbacks"]
    assert around.names == names
    assert history.epoch == [0, 1]


def test_wrapping_twice_changes_nothing() -> None:
    before = keras.Model.fit
    _replacing.install()
    assert keras.Model.fit is before
    parameters = list(inspect.signature(keras.Model.fit).parameters)
    assert parameters[:4] == ["self", "x", "y", "batch_size"]
