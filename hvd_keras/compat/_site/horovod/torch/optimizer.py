"""`horovod.torch.optimizer`."""

from hvd_keras.compat.torch.optimizer import *  # noqa: F403
