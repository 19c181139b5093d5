"""Keras's `keras.distribution`, on the ranks of a job of `hvdrun`.

Import this in the script, or run the script by `hvdrun --keras-distribution`.
Then `keras.distribution.initialize()` joins the job, and after
`keras.distribution.set_distribution(keras.distribution.DataParallel())` Keras's
`fit`, `evaluate` and `predict` share their data over the ranks. The model ends
as in one process. It works on TensorFlow, JAX and torch.

`hvdrun --distribute` does both for a script that knows nothing of it.
"""

from __future__ import annotations

import importlib

from hvd_keras._common.when_imported import call_when_imported

call_when_imported(
    {
        "keras": lambda: importlib.import_module(
            f"{__name__}._keras_api"
        ).install()
    }
)
