"""`horovod.torch.elastic`."""

from hvd_keras.compat.elastic import ObjectState
from hvd_keras.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    State,
    TorchState,
    run,
)
from hvd_keras.elastic.torch_state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
)

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "run",
]
