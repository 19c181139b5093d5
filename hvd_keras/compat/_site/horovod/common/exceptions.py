"""`horovod.common.exceptions`."""

from hvd_keras.exceptions import JobError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """Never raised here: hvd_keras compares versions in `init`."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """Never raised here: jobs have a fixed size."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
]
