"""`horovod.runner.elastic`."""
