"""`horovod.torch`."""

from hvd_keras.compat.torch import *  # noqa: F403

from .. import __version__ as __version__
from . import compression as compression
from . import elastic as elastic
from . import functions as functions
from . import mpi_ops as mpi_ops
from . import optimizer as optimizer
from . import sync_batch_norm as sync_batch_norm
