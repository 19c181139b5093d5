"""States that hold variables of TensorFlow or Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from hvd_keras import _backends
from hvd_keras._backends.interface import Array
from hvd_keras._common.autograph import as_it_is
from hvd_keras._keras.models import is_fully_built
from hvd_keras._values.agreement import together
from hvd_keras.callbacks._building import building_slots
from hvd_keras.elastic.state import ObjectState
from hvd_keras.variables import broadcast_variables


class TensorFlowState(ObjectState):
    """Keeps variables, and plain values as attributes.

    Args:
        variables: Variables of TensorFlow or Keras, the same on all ranks.
        session: Must be None: hvd_keras keeps no variables of sessions.
        **kw: See `ObjectState`.

    Example:

    >>> state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], step=0)
    """

    def __init__(
        self,
        variables: Iterable[Any] | None = None,
        session: Any = None,
        **kw: Any,
    ) -> None:
        if session is not None:
            raise NotImplementedError(
                "`session` must be None: elastic states keep variables of "
                f"eager code. Received: session={session!r}."
            )
        super().__init__(**kw)
        self.variables = list(variables or ())
        self._hvd_values: list[Array] = []
        self.save()

    def save(self) -> None:
        """Keeps the variables and the attributes in memory."""
        read = _backends.current().read
        # Copies: a variable's memory may be written to.
        self._hvd_values = [read(each).copy() for each in self._hvd_all()]
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved."""
        assign = _backends.current().assign
        for variable, value in zip(
            self._hvd_all(), self._hvd_values, strict=False
        ):
            assign(variable, value)
        super().restore()

    @as_it_is
    def sync(self) -> None:
        """Gives all ranks what `root_rank` has, and saves."""
        broadcast_variables(self._hvd_all(), self.root_rank)
        super().sync()

    def _hvd_all(self) -> list[Any]:
        return self.variables


class TensorFlowKerasState(TensorFlowState):
    """Keeps a model, its optimizer, and plain values as attributes.

    Args:
        model: A model that is built.
        optimizer: Its optimizer, if the model is not compiled with it.
        backend: Ignored; Horovod has it.
        **kw: See `ObjectState`; mostly `epoch` and `batch`.

    Raises:
        ValueError: The model is not built.

    Example:

    >>> state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any = None,
        backend: Any = None,
        **kw: Any,
    ) -> None:
        if not is_fully_built(model):
            raise ValueError(
                "`model` must be built, so that its state can be kept. "
                f"Received: {model.name!r}, not built; call it on a batch, or "
                "give it an `Input`."
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self.backend = backend
        super().__init__(None, **kw)

    @as_it_is
    def sync(self) -> None:
        """Gives all ranks all that `root_rank` has, and saves."""
        holder: Any = self.model
        if self.optimizer is not getattr(holder, "optimizer", None):
            holder = _Holder(self.model, self.optimizer)
        together("KerasState/slots", [building_slots(holder, True, [])])
        super().sync()

    def _hvd_all(self) -> list[Any]:
        of_optimizer = getattr(self.optimizer, "variables", ())
        if callable(of_optimizer):  # an optimizer of Keras 2
            of_optimizer = of_optimizer()
        both = [*self.model.weights, *of_optimizer]
        return list({id(variable): variable for variable in both}.values())


class _Holder(keras.layers.Layer):
    """Shows an optimizer as if it belonged to a model."""

    def __init__(self, model: keras.Model, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self.trainable_model_variables = model.trainable_variables


KerasState = TensorFlowKerasState
