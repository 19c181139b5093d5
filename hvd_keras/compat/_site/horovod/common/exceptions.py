"""`horovod.common.exceptions`."""

from hvd_keras.elastic import HorovodInternalError, HostsUpdatedInterrupt


class HorovodVersionMismatchError(ImportError):
    """Never raised here: hvd_keras compares versions in `init`."""


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
]
