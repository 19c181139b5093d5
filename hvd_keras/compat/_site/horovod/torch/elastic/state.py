"""`horovod.torch.elastic.state`."""

from hvd_keras.compat.torch.elastic import *  # noqa: F403
