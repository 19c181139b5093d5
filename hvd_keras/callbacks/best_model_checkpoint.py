"""The callback that saves the best model, once for all ranks."""

from __future__ import annotations

from typing import Any

from hvd_keras.callbacks.model_checkpoint import ModelCheckpoint


class BestModelCheckpoint(ModelCheckpoint):
    """`ModelCheckpoint` that saves only the best model.

    You may set the path later: `callback.filepath = "best.keras"`.

    Args:
        monitor: The logged value that decides which model is the best.
        verbose: With 1, rank 0 prints when it saves.
        save_weights_only: Whether to save the weights (`*.weights.h5`) and not
            the model (`*.keras`).
        mode: "min", "max", or "auto", which follows from `monitor`.
        save_freq: "epoch", or the number of batches after which it may save.
        filepath: Where to save.

    Raises:
        ValueError: From `fit`: `filepath` is not set or has another ending.

    Example:

    >>> best = hvd.callbacks.BestModelCheckpoint(filepath="best.keras")
    >>> model.fit(dataset, validation_data=held_out, callbacks=[best])
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        self._suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            f"unnamed{self._suffix}",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.filepath = str(self.filepath or "")
        if not self.filepath.endswith(self._suffix):
            raise ValueError(
                f"`filepath` must be set, and end in {self._suffix!r}. "
                f"Received: filepath={self.filepath!r} for "
                f"{type(self).__name__}."
            )
        super().on_train_begin(logs)
