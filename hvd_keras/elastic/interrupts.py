"""What ends a run of a training function, so that it runs again."""

from __future__ import annotations

from hvd_keras.exceptions import JobError

# Horovod's name of what a collective raises that has failed.
HorovodInternalError = JobError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """The members of the job change now; every rank has this state.

    Args:
        skip_sync: Ignored: the ranks always take the state of rank 0.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
