"""What the Keras layer asks of the framework below Keras."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 (np.dtype("bfloat16") is known from here on)
import numpy as np

from hvd_keras._backends.notes import Note
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
    """The dtype and shape of a gradient or variable; None: unknown length."""

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
    """The adapter of a framework. The methods here suit most frameworks.

    Gradients are tensors of the framework, values of variables NumPy arrays.
    """

    # Whether steps are traced: then ranks see new lists of gradients together.
    traces = True
    # Whether Keras clips the gradients of each batch while it accumulates them.
    clips_each_batch = False
    # Waits until a step has run, with what it returned. None: it has by then.
    wait_for_step: Callable[[Any], object] | None = None

    @property
    def skips_alone(self) -> bool:
        """Whether a job of one process skips reductions altogether."""
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

    def weighted(self, gradient: Gradient, weight: Any) -> Gradient:
        """Returns a gradient times a tensor of one number."""
        import keras

        return gradient * keras.ops.cast(weight, dtype_of(gradient))

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

        Only `together` may use the results.

        Args:
            tensors: Dense gradients, compressed; they may be overwritten.
            name: Pairs the call across ranks.
            options: The op, the process set.
            postscale: Multiplies the results.
            seal: Shape of an empty tensor that the ranks compare.
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
        """Gathers a sparse gradient from all ranks; not on every framework."""
        raise NotImplementedError

    def reducing(
        self, last: Gradient, device: str
    ) -> contextlib.AbstractContextManager[Any]:
        """A context for reductions on `device` that wait for `last`."""
        return contextlib.nullcontext()

    def together(self, gradients: list[Gradient]) -> list[Gradient]:
        """Returns reduced gradients, ready for use when all are there."""
        return gradients

    def reduce_if(
        self,
        condition: Any,
        reduce: Callable[[list[Gradient]], list[Gradient]],
        gradients: list[Gradient],
    ) -> list[Gradient]:
        """Returns `reduce(gradients)`, never compiled by the framework.

        Args:
            condition: None, or a tensor if `clips_each_batch`: if it is false,
                `gradients` are returned as they are.
            reduce: Reduces over the ranks.
            gradients: This rank's gradients.
        """
        return reduce(gradients)

    def call_if(
        self, condition: Any, call: Callable[[], None], changes: Sequence[Any]
    ) -> None:
        """If `condition`, calls `call`, which assigns to `changes`."""
        import keras

        keras.ops.cond(condition, call, lambda: None)

    def mean_over_ranks(
        self,
        value: Tensor,
        name: str,
        process_set: ProcessSet,
        chain: list[Tensor],
    ) -> Tensor:
        """Returns the mean of a small tensor of floats over the ranks.

        Args:
            value: The tensor.
            name: Pairs the call across ranks.
            process_set: The ranks that take part.
            chain: What earlier calls of the same step have put there; the calls
                of a chain run one after the other.
        """
        raise NotImplementedError

    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        """Whether `flag`, a bool or a tensor, is true on every rank."""
        raise NotImplementedError

    def sum(self, tensor: Tensor, name: str, process_set: ProcessSet) -> Tensor:
        """Returns the sum over the ranks of a small tensor of integers."""
        raise NotImplementedError

    @property
    def has_float64(self) -> bool:
        """Whether layers may compute in float64."""
        return True

    def sum_in_layer(
        self,
        tensor: Tensor,
        name: Callable[[], str],
        process_set: ProcessSet,
    ) -> Tensor:
        """Returns the sum over the ranks, which has a gradient.

        Args:
            tensor: Of a floating dtype.
            name: Returns what pairs the calls of a layer across ranks. A step
                may make several of them, in the same order on all ranks.
            process_set: The ranks that take part.
        """
        raise NotImplementedError

    def is_in_other_strategy(self) -> bool:
        """Whether something else than hvd_keras distributes the layers."""
        return False

    def make_cell(self, before: Any) -> Any:
        """Returns a number that a compiled step may set, not known so far.

        None where Python gives the steps their batches.

        Args:
            before: What this has returned before; it is taken again. Or None.
        """
        return None

    def make_note(self, size: int) -> Note:
        """Returns a note for flags of `size` ranks, which a step may take."""
        return Note(size)

    def xla_problem(self) -> str | None:
        """Returns why "auto" must not choose XLA here; None if it may."""
        return None

    # Variables.

    def describe(self, variable: Any) -> TensorInfo:
        """Describes a variable.

        Raises:
            InvalidArgumentError: It is not a variable that holds numbers.
        """
        import keras

        if not isinstance(variable, keras.Variable):
            raise InvalidArgumentError(
                "`variables` must be Keras variables. Received: "
                f"{type(variable).__name__}."
            )
        dtype = keras.backend.standardize_dtype(variable.dtype)
        return TensorInfo(dtype, tuple(variable.shape))

    def read(self, variable: Any) -> Array:
        """Returns the value, bit for bit. Do not write to it."""
        import keras

        return np.asarray(keras.ops.convert_to_numpy(variable.value))

    # Whether `peek` may find values in a second trace that follows the first.
    has_values_later = False

    def peek(self, variable: Any) -> Array | None:
        """Returns the value that a variable has outside of a running trace.

        It is None if the variable has none yet.
        """
        return self.read(variable)

    def assign(self, variable: Any, value: Array) -> None:
        variable.assign(value)

    def products_of_rows(
        self, data: list[Any], found: list[str]
    ) -> contextlib.AbstractContextManager[Any]:
        """Finds products of rows by rows in the step that runs in the context.

        Args:
            data: The tensors of its batch.
            found: Gets a name of each product.
        """
        return contextlib.nullcontext()

    def sums_of_rows(
        self, loss: Any, data: list[Any], known: Iterable[Any]
    ) -> set[str]:
        """Tells what of a scalar is no mean over rows.

        Args:
            loss: The scalar, in a step that runs or is traced.
            data: The tensors of its batch.
            known: Parts of the loss that are right.

        Returns:
            "sum", for a sum over rows, and "ratio", for what is divided by
            another number of the batch than that of its rows.
        """
        return set()

    def are_changed(self, gradients: list[Any], own: list[Any]) -> bool:
        """Whether a step has changed its gradients other than by a factor.

        Args:
            gradients: What an optimizer gets.
            own: What the backend has noted of them in the step.
        """
        return False

    def held(self, value: Any) -> Array | None:
        """Returns the value of a variable or tensor; None for other objects.

        Symbolic tensors have none.
        """
        # TensorFlow gives scalars as numbers of NumPy.
        is_array = isinstance(value, np.ndarray | np.generic)
        is_array = is_array and value.dtype != object
        return value if is_array else None

    def random_state(self) -> Array:
        """Returns the bytes of the random state that no variable holds."""
        return np.zeros(0, np.uint8)

    def set_random_state(self, state: Array) -> None:
        """Goes on from `random_state()`."""

    def broadcast_in_graph(
        self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet
    ) -> Any:
        """Returns an operation that broadcasts later; None to do it now."""
        return None

    # Keras.

    def prepare(
        self,
        reduces_over_ranks: Callable[[Any], bool],
        tell_of_products: Callable[[Any, list[str]], None],
    ) -> None:
        """Hooks into Keras's trainer.

        Args:
            reduces_over_ranks: Whether the steps of a model reduce gradients
                over the ranks.
            tell_of_products: Gets a model and the products of rows by rows in
                its step, where `products_of_rows` cannot find them.
        """

    def keep_from_averaging(self, averages: Callable[[Any], bool]) -> None:
        """Keeps Keras from averaging over the ranks if `averages(model)`.

        Args:
            averages: Whether hvd_keras averages the gradients of a model.
        """

    def change_state(
        self, model: Any, state: list[Any], change: Callable[[], None]
    ) -> list[Any]:
        """Calls `change`, which assigns to the variables of a model.

        Args:
            model: The model, in the middle of an epoch of `fit`.
            state: The state that a train function gets with the data and
                returns with the logs; empty except on JAX.
            change: Assigns to variables.

        Returns:
            The state after `change`.
        """
        change()
        return state
