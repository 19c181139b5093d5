"""`horovod.tensorflow.sync_batch_norm`."""

from hvd_keras.compat import SyncBatchNormalization as SyncBatchNormalization
