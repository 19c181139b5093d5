"""The rank's part of a batch, which makes means those of one process.

One process takes the mean over the rows of a batch. A rank has some of these
rows, and its gradient counts by its *weight*: its own rows over the mean of the
ranks' rows. So the mean of the ranks' gradients is that of one process, whoever
has computed the loss:

  sum over ranks of (rows_r / mean rows) * mean_r / ranks = mean of all rows

Terms that know no rows, such as the decay of weights, stay as they are: the
weights of the ranks are 1 on average. A rank without rows has the weight 0.

Where Keras divides by another count (entries that a mask leaves, weights), that
loss is scaled by the ratio of that count to the mean of the ranks' counts, and
divided by the weight of the rank.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras

from hvd_keras import _backends
from hvd_keras._keras import advice
from hvd_keras._keras import losses as keras_losses
from hvd_keras._keras import steps as keras_steps
from hvd_keras._keras.calls import Rows
from hvd_keras.data._counts import Counts
from hvd_keras.process_set import ProcessSet


def count_dtype() -> str:
    """Returns the dtype of counts and of weights, in which no digit is lost."""
    is_wide = keras.config.floatx() == "float64"
    has_it = _backends.current().has_float64
    return "float64" if is_wide and has_it else "float32"


def mean_over_ranks(
    value: Any, name: str, process_set: ProcessSet, chain: list[Any]
) -> Any:
    """Returns the mean of a scalar over the ranks, in `count_dtype`.

    Calls with the same `chain`, a list that is empty at first, run one after
    the other.
    """
    value = keras.ops.cast(keras.ops.convert_to_tensor(value), count_dtype())
    value = keras.ops.stop_gradient(value)
    return _backends.current().mean_over_ranks(value, name, process_set, chain)


def rows_in_step() -> Any:
    """Returns 1.0 for each row of the running step, 0.0 for one that fills it.

    It is None outside of a training step, and if no row can fill it.
    """
    batch = keras_steps.running_batch()
    return None if batch is None else batch.row_weights()


def gradient_weight_of_step() -> Any:
    """Returns what will multiply the gradients of the running step.

    It is None outside of a training step, where the ranks have equally many
    rows, and where the loss is multiplied instead, as in Keras's own steps.
    """
    step = keras_steps.running_step()
    batch = keras_steps.running_batch()
    if step is None or batch is None or step.hides_loss:
        return None
    return batch.weight


class Batch:
    """The part of a batch that this rank has, in one step.

    Args:
        rows: The rows that the step sees.
        first: The rows of the first tensor of x, for which Keras counts a
            batch when it reports the loss.
        weights: Those of the rows, if some rows may only fill the batch.
        marks: These weights, if they are not the user's.
        is_partial: Whether they may do so beside rows that count.
        counts: What is known of the rows of all ranks.
        name: First part of the names of its collectives.
        process_set: The ranks that share the batch.
        sum_factor: Multiplies losses that are sums.
        is_shared: Whether its loss is that of all ranks.
        asks: Whether the ranks ask each other for their rows in any case, and
            not only where a mean over rows does not do.
        known: What else is known of the rows.
        is_eager: Whether the step runs op by op.
        can_cut: Whether tensors can have as many rows as values say.
        data: Its tensors, where a loss is looked at; else none.
    """

    def __init__(
        self,
        rows: Any,
        *,
        first: Any,
        weights: Any,
        marks: Any,
        is_partial: bool,
        counts: Counts | None,
        name: str,
        process_set: ProcessSet,
        sum_factor: float,
        is_shared: bool,
        asks: bool,
        known: Rows,
        is_eager: bool,
        can_cut: bool,
        data: list[Any],
    ) -> None:
        self.known: list[Any] = []
        # What of losses is no mean over rows, and nobody has made one of all
        # ranks; see `Backend.sums_of_rows`.
        self.sums_of_rows: set[str] = set()
        # What the backend has noted of them, and whether the step has changed
        # them.
        self.gradients: list[Any] = []
        self.changes_gradients = False
        self._data = data
        self.is_partial, self.can_cut = is_partial, can_cut
        self.leaves_out = False
        # Whether a count of its losses is known.
        self.has_known_mean = False
        self.marks = marks
        self.process_set = process_set
        # Whether the loss has this rank's weight already.
        self.has_weight = False
        self._rows = rows
        self._is_row = None if weights is None else _is_row(weights)
        self._name = name
        self._sum_factor = sum_factor
        self._is_shared, self._asks = is_shared, asks
        self._known = known
        self._is_eager = is_eager
        self._numbers = itertools.count()
        self._chain: list[Any] = []
        self._real = real_rows(rows, weights)
        self.is_real: Any = None
        if self._is_row is not None and not is_partial:
            self.is_real = self._real > 0
        self._counts, self._first = counts, first
        # This rank's weight in the mean over the ranks, and the mean of their
        # `first`; None: 1, and as here, or not asked for yet.
        self._weight: Any = None
        self._mean_first: Any = None
        self._is_weighed = False

    @property
    def has_part_of_loss(self) -> bool:
        """Whether the loss that was computed has this rank's weight."""
        return self.has_weight and self._weight is not None

    @property
    def real_rows(self) -> Any:
        """The rows that do not only fill it; an integer or a scalar tensor."""
        return self._real

    @property
    def weight(self) -> Any:
        """This rank's rows over the mean of the ranks' rows; None: 1."""
        if self._asks:
            self._weigh()
        return self._weight

    def _weigh(self) -> None:
        """Learns the rows of the other ranks, once."""
        counts = self._counts
        num_ranks = (
            self.process_set.size() if counts is None else counts.num_ranks
        )
        if self._is_weighed or num_ranks == 1:
            return
        self._is_weighed = True
        if counts is None:
            both = self._real, self._first_that_count()
            means = self._mean(
                keras.ops.stack(
                    [keras.ops.cast(n, count_dtype()) for n in both]
                )
            )
            self._mean_first = means[-1]
            self._weight = _divided(self._real, means[0])
        elif counts.rest and not counts.are_equal():
            real = keras.ops.cast(self._real, count_dtype())
            mean_first = keras.ops.where(
                keras.ops.equal(real, float(counts.batch_size)),
                float(counts.batch_size),
                counts.rest / counts.num_ranks,
            )
            self._mean_first = keras.ops.cast(mean_first, count_dtype())
            self._weight = _divided(real, self._mean_first)

    def _first_that_count(self) -> Any:
        """Returns the rows of the first tensor without those that fill it."""
        if self._first is self._rows:
            return self._real
        if self._is_row is None:
            return self._first
        ratio = _divided(self._real, self._rows)
        return ratio * keras.ops.cast(self._first, count_dtype())

    # ---- The loss ----

    def total(self, loss: Any) -> Any:
        self.has_weight = True
        if len(loss.shape) and self._is_shared:  # Keras takes its sum
            factor = self._sum_factor * self._kept(1.0)
            if self.is_partial and len(loss.shape) == 1:
                factor = factor * self._is_row
            return loss * keras.ops.cast(factor, loss.dtype)
        self.look_for_sums(loss)
        return self._weighted(loss)

    def look_for_sums(self, loss: Any) -> None:
        """Notes what of a scalar loss is no mean over the rows."""
        if self._data and self._sum_factor != 1.0:
            self.sums_of_rows |= _backends.current().sums_of_rows(
                loss, self._data, self.known
            )

    def summed(self, loss: Any) -> Any:
        if not self._is_shared:
            return loss
        self.has_known_mean = True
        self._weigh()
        return self._unweighted(loss * self._sum_factor)

    def scaled(
        self,
        loss: Any,
        *,
        values: Any,
        sample_weight: Any,
        mask: Any,
        reduction: str,
        dtype: Any,
        is_of_rows: bool,
    ) -> Any:
        self.has_known_mean = True
        if reduction == "sum":
            return self.summed(loss)
        by_weights = (
            reduction == "mean_with_sample_weight" and sample_weight is not None
        )
        is_plain = mask is None and not by_weights
        if is_plain and self._knows_count(values, is_of_rows):
            if not self.is_partial:
                return loss  # its count is that of its rows
            factor = _divided(self._rows, self._real)
        elif self._is_shared:
            self._weigh()
            own, real = self._counts_of(
                values, sample_weight, mask, reduction, dtype
            )
            factor = self._unweighted(_divided(own, self._mean(real)))
        else:
            return loss
        return loss * keras.ops.cast(factor, loss.dtype)

    def weight_of_mean(self, sample_weight: Any) -> Any:
        shape = getattr(sample_weight, "shape", ())
        if not (self._is_shared and self._asks and len(shape)):
            return sample_weight
        weights = keras.ops.cast(sample_weight, count_dtype())
        count = _divided(self._real, self._rows) * keras.ops.cast(
            keras.ops.size(weights), count_dtype()
        )
        means = self._mean(
            keras.ops.stack([keras.ops.sum(weights), self._kept(count)])
        )
        return _divided(means[0], means[1])

    def sums(self, terms: Any, count: Any) -> tuple[Any, Any]:
        """Returns the sum of a loss's terms, and what it is divided by.

        Args:
            terms: Of the rows, in the first dimension.
            count: What each counts, in the same shape.
        """
        self.has_known_mean = True
        count = keras.ops.cast(count, count_dtype())
        if self.is_partial:
            self.leaves_out = True
            shape = [-1] + [1] * (len(terms.shape) - 1)
            is_row = keras.ops.reshape(self._is_row, shape)
            terms = terms * keras.ops.cast(is_row, terms.dtype)
            count = count * is_row
        mean = self._mean(self._kept(keras.ops.sum(count)))
        weight = self.weight
        mean = mean if weight is None else mean * weight
        return keras.ops.sum(terms), mean

    def _knows_count(self, values: Any, is_of_rows: bool) -> bool:
        """Whether the ranks' counts of `values` are to each other as rows."""
        if len(values.shape) == 0:
            return True
        first, *others = values.shape
        # Elsewhere a shape may depend on this rank's values.
        is_static = keras.backend.backend() == "jax" or (
            keras.backend.backend() == "tensorflow"
            and self._counts is not None
            and not self._is_eager
        )
        has_rows = is_of_rows or (
            is_static and isinstance(self._rows, int) and first == self._rows
        )
        return has_rows and (not others or self._known.are_fixed)

    def _counts_of(
        self,
        values: Any,
        sample_weight: Any,
        mask: Any,
        reduction: str,
        dtype: Any,
    ) -> tuple[Any, Any]:
        """Returns the count that Keras divided by, and that of real rows."""
        if reduction == "mean_with_sample_weight" and (
            mask is not None or sample_weight is not None
        ):
            weights = keras_losses.weights_of(
                sample_weight, mask, reduction, dtype
            )
            # Filling has the weight 0 here.
            own = keras.ops.sum(keras.ops.cast(weights, count_dtype()))
            return own, own if self.is_partial else self._kept(own)
        if mask is None:
            valid = keras.ops.ones_like(values, dtype=count_dtype())
        else:
            valid = keras.ops.cast(mask, count_dtype())
        own = keras.ops.sum(valid)
        if self.is_partial and self._is_row is not None:
            shape = [-1] + [1] * (len(valid.shape) - 1)
            is_row = keras.ops.reshape(self._is_row, shape)
            return own, keras.ops.sum(valid * is_row)
        return own, self._kept(own)

    def _kept(self, count: Any) -> Any:
        """Returns a count, 0 if no row of the batch counts."""
        if self.is_real is None:
            return count
        return keras.ops.where(self.is_real, count, 0.0)

    # ---- What is reported ----

    def tracked(self, loss: Any, num_rows: Any) -> tuple[Any, Any]:
        weight, mean = self.weight, self._mean_first
        if mean is None:
            mean = keras.ops.cast(num_rows, count_dtype())
        if len(loss.shape) and self._is_shared:  # Keras reports its mean
            loss = loss / keras.ops.cast(self._sum_factor, loss.dtype)
            if self.is_partial:
                ratio = _divided(self._rows, self._real)
                loss = loss * keras.ops.cast(ratio, loss.dtype)
        else:
            loss = self._unweighted(loss)
        if weight is not None:
            return loss, weight * mean
        if self.is_partial:
            ratio = _divided(self._real, self._rows)
            num_rows = ratio * keras.ops.cast(num_rows, count_dtype())
        return loss, num_rows

    def weighed(self, weight: Any, *, is_of_output: bool) -> Any:
        own = self.weight
        if weight is None:
            return own
        if is_of_output and own is not None and not self._known.are_same:
            mean = keras.ops.cast(
                keras.ops.convert_to_tensor(weight), count_dtype()
            )
            return self._mean(mean) * own
        if self.is_partial:
            ratio = _divided(self._real, self._rows)
            weight = ratio * keras.ops.cast(weight, count_dtype())
        return weight

    def has_rows_of(self, structure: Any) -> bool:
        return self._known.are_same or len(tensors_in(structure)) == 1

    def row_weights(self) -> Any:
        return self._is_row

    def tell_of_filling(self, metric: Any) -> None:
        advice.tell_of_filled_metric(metric)

    # ---- Gradients ----

    def look_at_gradients(self, gradients: list[Any]) -> None:
        """Notes whether a step has changed its gradients by itself."""
        if self._data and self.process_set.size() != 1:
            self.changes_gradients |= _backends.current().are_changed(
                gradients, self.gradients
            )

    def gradient_weight(self, process_set: ProcessSet) -> Any:
        """Returns what multiplies gradients before the ranks average them.

        It is None if they have this rank's weight, or if that is 1.
        """
        if self.has_weight or process_set is not self.process_set:
            return None
        return self.weight

    def _weighted(self, value: Any) -> Any:
        weight = self.weight
        if weight is None:
            return value
        return value * keras.ops.cast(weight, value.dtype)

    def _unweighted(self, value: Any) -> Any:
        weight = self.weight
        if weight is None:
            return value
        weight = keras.ops.cast(weight, value.dtype)
        return keras.ops.divide_no_nan(value, weight)

    def _mean(self, value: Any) -> Any:
        if self.process_set.size() == 1:
            return value
        name = f"{self._name}/{next(self._numbers)}"
        return mean_over_ranks(value, name, self.process_set, self._chain)


def tensors_in(structure: Any) -> list[Any]:
    """Returns the tensors of a structure that have rows."""
    return [
        tensor
        for tensor in keras.tree.flatten(structure)
        if tensor is not None and len(getattr(tensor, "shape", ()))
    ]


def real_rows(rows: Any, weights: Any = None) -> Any:
    """Returns how many of a batch's rows do not only fill it."""
    return rows if weights is None else keras.ops.sum(_is_row(weights))


def _is_row(weights: Any) -> Any:
    """Returns 1.0 for each row, 0.0 for one that fills the batch.

    The weight of filling is -0.0; that of a row may be 0.0.
    """
    first = (slice(None), *[0] * (len(weights.shape) - 1))
    column = weights[first]
    inverse = keras.ops.divide(1.0, keras.ops.cast(column, count_dtype()))
    return keras.ops.cast(
        keras.ops.not_equal(inverse, -float("inf")), count_dtype()
    )


def _divided(numerator: Any, denominator: Any) -> Any:
    return keras.ops.divide_no_nan(
        keras.ops.cast(numerator, count_dtype()),
        keras.ops.cast(denominator, count_dtype()),
    )
