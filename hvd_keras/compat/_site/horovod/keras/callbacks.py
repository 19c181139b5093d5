"""`horovod.keras.callbacks`."""

from hvd_keras.compat.callbacks import *  # noqa: F403
from hvd_keras.compat.elastic import (
    CommitStateCallback as CommitStateCallback,
)
from hvd_keras.compat.elastic import (
    UpdateBatchStateCallback as UpdateBatchStateCallback,
)
from hvd_keras.compat.elastic import (
    UpdateEpochStateCallback as UpdateEpochStateCallback,
)
