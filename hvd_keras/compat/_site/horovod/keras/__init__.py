"""`horovod.keras`: the same as `horovod.tensorflow.keras`, for Keras 3."""

from ..tensorflow.keras import *  # noqa: F403
from ..tensorflow.keras import __version__ as __version__
