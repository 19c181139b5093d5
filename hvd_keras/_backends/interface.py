"""What the Keras layer asks of the framework below Keras."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 (np.dtype("bfloat16") is known from here on)
import numpy as np

from hvd_keras._common.frameworks import dtype_of
from hvd_keras.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from hvd_keras._backends.options import ReduceOptions
    from hvd_keras.process_set import ProcessSet

Array = np.ndarray[Any, Any]
Tensor = Any
Gradient = Any  # a tensor, or TensorFlow's IndexedSlices


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What a gradient or a variable is; a dimension may be unknown (None)."""

    dtype: str
    shape: tuple[int | None, ...]
    is_sparse: bool = False

    @property
    def num_bytes(self) -> int:
        num_elements = 1
        for length in self.shape:
            num_elements *= length or 1
        return num_elements * np.dtype(self.dtype).itemsize


class Backend:
    """The adapter of a framework; what is here serves frameworks in general.

    Gradients are of the framework, values of variables are NumPy's.
    """

    # Whether steps are traced: the ranks see a new list of gradients together.
    traces = True
    # Whether Keras, while it accumulates gradients, clips those of each batch.
    clips_each_batch = False

    @property
    def skips_alone(self) -> bool:
        """Whether one process reduces nothing at all."""
        return True

    # Gradients.

    def describe_gradient(
        self, gradient: Gradient, variable: Any
    ) -> TensorInfo:
        shape = tuple(getattr(variable, "shape", gradient.shape))
        return TensorInfo(dtype_of(gradient), shape)

    def to_dense(self, gradient: Gradient) -> Tensor:
        return gradient

    def scaled(self, gradient: Gradient, factor: float) -> Gradient:
        return gradient if factor == 1.0 else gradient * factor

    def grouped_allreduce(
        self,
        tensors: list[Tensor],
        *,
        name: str,
        options: ReduceOptions,
        postscale: float,
        seal: tuple[int, ...] | None = None,
    ) -> list[Tensor]:
        """Reduces gradients over the ranks, as one request.

        The results are for `together` alone.

        Args:
            tensors: Dense ones, compressed; they may be overwritten.
            name: Pairs the call across ranks.
            options: The op, the process set.
            postscale: Factor of the results.
            seal: Shape of an empty tensor that is compared over the ranks.
        """
        raise NotImplementedError

    def gather_slices(
        self,
        gradient: Gradient,
        *,
        name: str,
        options: ReduceOptions,
        factor: float,
        seal: tuple[int, ...] | None = None,
    ) -> Gradient:
        """Gathers a sparse gradient from all ranks; where there are such."""
        raise NotImplementedError

    def reducing(
        self, last: Gradient, device: str
    ) -> contextlib.AbstractContextManager[Any]:
        """A context for reductions that follow the gradient `last`."""
        return contextlib.nullcontext()

    def together(self, gradients: list[Gradient]) -> list[Gradient]:
        """Returns gradients that were reduced, for use when all are there."""
        return gradients

    def reduce_if(
        self,
        condition: Any,
        reduce: Callable[[list[Gradient]], list[Gradient]],
        gradients: list[Gradient],
    ) -> list[Gradient]:
        """Returns `reduce(gradients)`, never compiled by the framework.

        Args:
            condition: A tensor, where Keras clips the gradients of each batch:
                if it is false, `gradients` are returned as they are.
            reduce: Reduces over the ranks.
            gradients: This rank's.
        """
        return reduce(gradients)

    def call_if(
        self, condition: Any, call: Callable[[], None], changes: Sequence[Any]
    ) -> None:
        """Calls `call`, which assigns to the variables `changes`, or not."""
        import keras

        keras.ops.cond(condition, call, lambda: None)

    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        """Whether `flag`, a bool or a tensor, is true on every rank."""
        raise NotImplementedError

    def xla_problem(self) -> str | None:
        """Returns why "auto" is not to choose XLA here; None: it may."""
        return None

    # Variables.

    def describe(self, variable: Any) -> TensorInfo:
        """Raises InvalidArgumentError for what is no variable of numbers."""
        import keras

        if not isinstance(variable, keras.Variable):
            raise InvalidArgumentError(
                "`variables` must be Keras variables. Received: "
                f"{type(variable).__name__}."
            )
        dtype = keras.backend.standardize_dtype(variable.dtype)
        return TensorInfo(dtype, tuple(variable.shape))

    def read(self, variable: Any) -> Array:
        """Returns the value, bit for bit; not to be written to."""
        import keras

        return np.asarray(keras.ops.convert_to_numpy(variable.value))

    def assign(self, variable: Any, value: Array) -> None:
        variable.assign(value)

    def broadcast_in_graph(
        self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet
    ) -> Any:
        """Returns the operation that does it later; None: do it now."""
        return None

    # Keras.

    def prepare(self, reduces_over_ranks: Callable[[Any], bool]) -> None:
        """Hooks into Keras, when there is the first distributed optimizer.

        Args:
            reduces_over_ranks: Whether steps of a model are a matter of all
                ranks.
        """

    def change_state(
        self, model: Any, state: list[Any], change: Callable[[], None]
    ) -> list[Any]:
        """Calls `change`, which assigns to the variables of a model.

        Args:
            model: The model, in the middle of an epoch of `fit`.
            state: What a train function gets beside data, and returns beside
                logs: nothing, unless on JAX.
            change: Assigns to variables.

        Returns:
            The state after that.
        """
        change()
        return state
