"""Training that goes on when ranks die, leave or come.

What needs Keras or torch is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._common.lazy import importer
from hvd_keras.elastic.interrupts import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from hvd_keras.elastic.run import run
from hvd_keras.elastic.state import ObjectState, State

if TYPE_CHECKING:
    from hvd_keras.elastic._fit import fit
    from hvd_keras.elastic.elastic import Elastic
    from hvd_keras.elastic.keras_state import (
        KerasState,
        TensorFlowKerasState,
        TensorFlowState,
    )
    from hvd_keras.elastic.sampler import ElasticSampler
    from hvd_keras.elastic.scale_learning_rate import ScaleLearningRate
    from hvd_keras.elastic.state_callbacks import (
        CommitStateCallback,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
    )
    from hvd_keras.elastic.torch_state import TorchState

__all__ = [
    "CommitStateCallback",
    "Elastic",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "ScaleLearningRate",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "TorchState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "fit",
    "run",
]

_HOMES = {
    "elastic": "Elastic",
    "_fit": "fit",
    "keras_state": "KerasState TensorFlowKerasState TensorFlowState",
    "sampler": "ElasticSampler",
    "scale_learning_rate": "ScaleLearningRate",
    "state_callbacks": (
        "CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback"
    ),
    "torch_state": "TorchState",
}
__getattr__ = importer(
    __name__,
    {name: home for home, names in _HOMES.items() for name in names.split()},
)
