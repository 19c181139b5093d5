"""`horovod.tensorflow`."""

from hvd_keras.compat import keras2
from hvd_keras.compat.tensorflow import *  # noqa: F403

from .. import __version__ as __version__
from . import compression as compression
from . import functions as functions

keras2.install()
