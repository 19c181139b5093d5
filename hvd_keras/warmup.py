"""A learning rate schedule that begins with a warm-up."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._keras import saved_forms


@keras.saving.register_keras_serializable(package="hvd_keras")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the rate step by step to that of another schedule.

    It does for an optimizer with a schedule what `LearningRateWarmupCallback`
    does for one whose rate is a number. With N ranks the rate begins near
    1 / N of `learning_rate` and rises in a straight line. It reaches
    `learning_rate` at the last step of the warm-up (Goyal et al.,
    https://arxiv.org/abs/1706.02677, section 2.2). If `learning_rate` is a
    schedule, it counts the steps of the warm-up too. Momentum is not corrected,
    because a schedule does not know the optimizer.

    A model that was saved with it loads without hvd_keras: a warm-up to a
    number as Keras's `PolynomialDecay`, one to a schedule as that schedule.

    A step is an update of the weights. With `backward_passes_per_step=n` that
    is n batches, unless `schedule_counts_batches=True` was given with it.

    Args:
        learning_rate: The rate to reach, for all ranks: a number or a
            schedule.
        warmup_steps: Number of steps in which the rate rises. For a warm-up of
            E epochs, E times the steps per epoch.
        start_multiplier: The line begins at this part of the rate. Defaults to
            1 / N, with the N ranks of the job that makes the schedule.

    Raises:
        ValueError: `warmup_steps` is not a positive integer.
        TypeError: `learning_rate` is neither a number nor a schedule.

    Example:

    >>> decay = keras.optimizers.schedules.CosineDecay(0.1 * hvd.size(), 9000)
    >>> optimizer = keras.optimizers.SGD(hvd.Warmup(decay, 500))
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        warmup_steps: int,
        start_multiplier: float | None = None,
    ) -> None:
        super().__init__()
        schedule = keras.optimizers.schedules.LearningRateSchedule
        if not isinstance(learning_rate, schedule | float | int):
            raise TypeError(
                "`learning_rate` must be a number or a schedule. Received: "
                f"learning_rate={learning_rate!r}."
            )
        if type(warmup_steps) is not int or warmup_steps < 1:
            raise ValueError(
                "`warmup_steps` must be an integer >= 1. Received: "
                f"warmup_steps={warmup_steps!r}."
            )
        if start_multiplier is None:
            start_multiplier = 1.0 / basics.size_of_job()
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.start_multiplier = float(start_multiplier)

    def __call__(self, step: Any) -> Any:
        rate = self.learning_rate
        if callable(rate):
            rate = rate(step)
        ops = keras.ops
        rate = ops.convert_to_tensor(rate, "float32")
        num_done = ops.cast(step, "float32") + 1.0
        rise = (1.0 - self.start_multiplier) * num_done / self.warmup_steps
        is_over = num_done >= self.warmup_steps
        return ops.where(is_over, rate, rate * (self.start_multiplier + rise))

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": keras.saving.serialize_keras_object(
                self.learning_rate
            ),
            "warmup_steps": self.warmup_steps,
            "start_multiplier": self.start_multiplier,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Warmup:
        rate = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(**{**config, "learning_rate": rate})


def _plain_form(warmup: Warmup, _: Any) -> dict[str, Any]:
    rate, steps = warmup.learning_rate, warmup.warmup_steps
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # Keras has no product of a line and a schedule.
        return saved_forms.plain_form_of(rate)
    first = 1.0 - (1.0 - warmup.start_multiplier) * (steps - 1) / steps
    line = keras.optimizers.schedules.PolynomialDecay(
        rate * first, max(steps - 1, 1), rate, power=1.0
    )
    return saved_forms.plain_form_of(line)


saved_forms.save_as(Warmup, _plain_form)
