"""`horovod.runner`: `run`, and what programs borrow from its modules."""

from hvd_keras.run.cli.horovod_run import run as run
