"""Training that goes on when ranks die, leave or come."""

from hvd_keras.elastic.elastic import Elastic
from hvd_keras.elastic.fit import fit
from hvd_keras.elastic.interrupts import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from hvd_keras.elastic.keras_state import (
    KerasState,
    TensorFlowKerasState,
    TensorFlowState,
)
from hvd_keras.elastic.run import run
from hvd_keras.elastic.scale_learning_rate import ScaleLearningRate
from hvd_keras.elastic.state import ObjectState, State
from hvd_keras.elastic.state_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

__all__ = [
    "CommitStateCallback",
    "Elastic",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "ScaleLearningRate",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "fit",
    "run",
]
