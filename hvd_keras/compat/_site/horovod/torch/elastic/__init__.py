"""`horovod.torch.elastic`."""

from hvd_keras.compat.torch.elastic import *  # noqa: F403

from . import sampler as sampler
from . import state as state
