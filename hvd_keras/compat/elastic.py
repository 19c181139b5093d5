"""`horovod.tensorflow.elastic`: missing yet; all names raise when used."""

from __future__ import annotations

from hvd_keras.compat._missing import missing

_REMEDY = (
    "jobs have a fixed size in this version. Save with "
    "`keras.callbacks.BackupAndRestore` and start the job again"
)

CommitStateCallback = missing("CommitStateCallback", _REMEDY)
KerasState = missing("KerasState", _REMEDY)
ObjectState = missing("ObjectState", _REMEDY)
State = missing("State", _REMEDY)
TensorFlowKerasState = missing("TensorFlowKerasState", _REMEDY)
TensorFlowState = missing("TensorFlowState", _REMEDY)
UpdateBatchStateCallback = missing("UpdateBatchStateCallback", _REMEDY)
UpdateEpochStateCallback = missing("UpdateEpochStateCallback", _REMEDY)
run = missing("elastic.run", _REMEDY)
