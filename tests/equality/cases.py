"""The cases of the equality table, by title."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras

import hvd_keras as hvd
from equality import data, own_losses, special
from equality.fits import Fit, Trained

optimizers = keras.optimizers


class Case(Protocol):
    """What is trained in one process and on all ranks.

    It may have `by_keras` and `by_ddp`, too.
    """

    def alone(self) -> Trained: ...

    def ours(self) -> Trained: ...


WHOLE = 2 * data.GLOBAL_BATCH  # rows


def whole(**options: Any) -> Fit:
    """Returns a case whose rows divide."""
    return Fit(num_rows=options.pop("num_rows", WHOLE), **options)


def adam() -> Any:
    return optimizers.Adam(0.01)


def adamw() -> Any:
    return optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.9
    )


def lamb() -> Any:
    return optimizers.Lamb(0.01)


def clipped() -> Any:
    return optimizers.Adam(0.01, global_clipnorm=0.1)


def scheduled() -> Any:
    return optimizers.SGD(optimizers.schedules.PolynomialDecay(0.05, 3))


# Losses whose ranks have unequal counts.
LOSSES: dict[str, Fit] = {
    "rest": Fit(),
    "rest_pad": Fit(policy="pad"),
    "fewer_rows_than_ranks": Fit(num_rows=WHOLE + 1),
    "fewer_rows_pad": Fit(num_rows=WHOLE + 1, policy="pad"),
    "nearly_full_rest": Fit(num_rows=WHOLE - 1),
    "mask": whole(make_model=data.sequence_model, make_data=data.sequences),
    "mask_rest": Fit(data.sequence_model, data.sequences),
    "mask_pad": Fit(data.sequence_model, data.sequences, policy="pad"),
    "two_masks": whole(
        make_model=data.two_sequence_model,
        make_data=data.two_sequences,
        metrics=(),
    ),
    "two_outputs": Fit(
        data.two_output_model,
        data.two_targets,
        metrics=(),
        compile={"loss_weights": {"out_a": 0.3, "out_b": 2.0}},
    ),
    "weights": whole(make_data=data.weighted_rows),
    "weights_pad": Fit(make_data=data.weighted_rows, policy="pad"),
    "mean_with_weights": whole(
        make_data=data.weighted_rows, reduction="mean_with_sample_weight"
    ),
    "mean_with_weights_rest": Fit(
        make_data=data.weighted_rows, reduction="mean_with_sample_weight"
    ),
    "masked_mean_with_weights": whole(
        make_model=data.sequence_model,
        make_data=data.sequences,
        reduction="mean_with_sample_weight",
    ),
    "masked_weights_pad": Fit(
        data.sequence_model,
        data.weighted_sequences,
        reduction="mean_with_sample_weight",
        policy="pad",
    ),
    "sum": whole(make_model=data.regularized_model, reduction="sum"),
    "sum_op": whole(
        make_model=data.regularized_model, reduction="sum", op=hvd.Sum
    ),
    "sum_op_rest": Fit(data.regularized_model, reduction="sum", op=hvd.Sum),
    "xla": Fit(compile={"jit_compile": True}, policy="pad"),
    "mask_xla": whole(
        make_model=data.sequence_model,
        make_data=data.sequences,
        compile={"jit_compile": True},
    ),
}

OPTIMIZERS: dict[str, Fit] = {
    "momentum": whole(),
    "adam": whole(make_optimizer=adam),
    "adamw_average": whole(make_optimizer=adamw),
    "lamb": whole(make_optimizer=lamb),
    "global_clipnorm": whole(make_optimizer=clipped),
    "schedule": whole(make_optimizer=scheduled),
    "accumulation": whole(num_rows=2 * WHOLE, make_optimizer=adam, passes=2),
    "regularizer": whole(make_model=data.regularized_model),
    "steps_per_execution": whole(
        compile={"steps_per_execution": 2}, backends=("tensorflow", "jax")
    ),
}

MODELS: dict[str, Any] = {
    "metrics": whole(
        make_model=data.classifier,
        make_data=data.labelled_rows,
        loss=keras.losses.BinaryCrossentropy,
        metrics=(keras.metrics.AUC, keras.metrics.Precision, "accuracy"),
    ),
    "convolution": whole(make_model=data.convolutional_model),
    "recurrent": whole(
        make_model=data.recurrent_model, make_data=data.sequences
    ),
    "positions": Fit(data.positions_model, data.sequences, make_optimizer=adam),
    "sync_batch_norm": whole(
        make_model=data.normalized_model,
        model_of_ranks=data.synchronized_model,
    ),
    "sync_batch_norm_pad": Fit(
        make_model=data.normalized_model,
        model_of_ranks=data.synchronized_model,
        policy="pad",
    ),
    "float8": whole(
        make_model=data.float8_model,
        why_not_equal="a rank's gradients are larger before they are averaged, "
        "and are rounded to 8 bits there",
    ),
    "subclass": whole(make_model=data.Subclass, seeds_differ=True),
    "unbuilt_sequential": whole(
        make_model=data.unbuilt_sequential, seeds_differ=True
    ),
    **special.CASES,
}

OWN = own_losses.CASES

TITLES = {
    "rest": "53 rows, batch 24",
    "rest_pad": '53 rows, `policy="pad"`',
    "fewer_rows_than_ranks": "49 rows: ranks without a row",
    "fewer_rows_pad": '49 rows, `policy="pad"`',
    "nearly_full_rest": "47 rows",
    "mask": "mask, sorted by length",
    "mask_rest": "mask, 53 rows",
    "mask_pad": 'mask, 53 rows, `policy="pad"`',
    "two_masks": "two outputs with masks of their own",
    "two_outputs": "two outputs with losses of their own, 53 rows",
    "weights": "sample weights",
    "weights_pad": 'sample weights, `policy="pad"`',
    "mean_with_weights": "`mean_with_sample_weight`",
    "mean_with_weights_rest": "`mean_with_sample_weight`, 53 rows",
    "masked_mean_with_weights": "`mean_with_sample_weight`, mask",
    "masked_weights_pad": "the same with weights and padding",
    "sum": '`reduction="sum"`, regularizer',
    "sum_op": '`reduction="sum"`, regularizer, `op=hvd.Sum`',
    "sum_op_rest": "the same, 53 rows",
    "xla": '53 rows, `jit_compile=True`, `policy="pad"`',
    "mask_xla": "mask, `jit_compile=True`",
    "momentum": "SGD with momentum",
    "adam": "Adam",
    "adamw_average": "AdamW with an average of weights",
    "lamb": "LAMB",
    "global_clipnorm": "Adam, `global_clipnorm`",
    "schedule": "a schedule of learning rates",
    "accumulation": "`backward_passes_per_step=2`",
    "regularizer": "regularizer",
    "steps_per_execution": "`steps_per_execution=2`",
    "metrics": "AUC, precision, accuracy",
    "convolution": "convolution, layer normalization",
    "recurrent": "embedding and GRU",
    "positions": "learned positions, Adam, 53 rows",
    "sync_batch_norm": "`SyncBatchNormalization`",
    "sync_batch_norm_pad": 'the same, 53 rows, `policy="pad"`',
    "float8": 'float8 (`quantize("float8")`)',
    "subclass": "model that its first batch builds",
    "unbuilt_sequential": "`Sequential` without `Input`",
    **own_losses.TITLES,
    **special.TITLES,
}

GROUPS = {
    "Losses": LOSSES,
    "Losses, steps and optimizers of one's own": OWN,
    "Optimizers": OPTIMIZERS,
    "Models": MODELS,
}
ALL: dict[str, Any] = {**LOSSES, **OWN, **OPTIMIZERS, **MODELS}


def of_backend(backend: str) -> list[str]:
    """Returns the names of the cases that concern a backend."""
    return [
        name
        for name, case in ALL.items()
        if backend in getattr(case, "backends", (backend,))
        # JAX compiles all of them.
        and not (backend == "jax" and name.endswith("xla"))
    ]


def trainer(case: Any, side: str) -> Callable[[], Trained] | None:
    """Returns how a case trains on a side; None if it cannot."""
    train: Callable[[], Trained] | None = getattr(case, side, None)
    return train
