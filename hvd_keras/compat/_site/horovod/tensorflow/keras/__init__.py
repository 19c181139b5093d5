"""`horovod.tensorflow.keras`."""

from hvd_keras.compat import keras2
from hvd_keras.compat.basics import *  # noqa: F403
from hvd_keras.compat.compression import Compression as Compression
from hvd_keras.compat.keras import *  # noqa: F403
from hvd_keras.compat.training import (
    KerasDistributedOptimizer,
)
from hvd_keras.compat.training import (
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)

from ... import __version__ as __version__
from . import callbacks as callbacks
from . import elastic as elastic

DistributedOptimizer = KerasDistributedOptimizer

keras2.install()
