"""`horovod.ray`, which hvd_keras lacks: importing it says so."""

from hvd_keras.compat._missing import missing_module

raise missing_module(__name__, "use `hvd_keras.ray`, which has RayExecutor")
