"""`horovod.torch.sync_batch_norm`."""

from hvd_keras.torch import SyncBatchNorm as SyncBatchNorm
