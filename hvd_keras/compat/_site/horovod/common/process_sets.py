"""`horovod.common.process_sets`."""

from hvd_keras.process_set import ProcessSet as ProcessSet
from hvd_keras.process_set import add_process_set as add_process_set
from hvd_keras.process_set import global_process_set as global_process_set
from hvd_keras.process_set import remove_process_set as remove_process_set
