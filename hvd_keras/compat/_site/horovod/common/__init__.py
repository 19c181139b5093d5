"""`horovod.common`."""
