"""`horovod.spark.common`."""
