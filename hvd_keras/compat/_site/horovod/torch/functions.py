"""`horovod.torch.functions`."""

from hvd_keras.compat.torch.functions import *  # noqa: F403
