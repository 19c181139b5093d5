"""Handles: what the asynchronous forms of collectives return."""

from __future__ import annotations

from typing import Any

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras.torch._call import Handle


@uncompiled
def poll(handle: Handle) -> bool:
    """Returns whether a collective has ended; it does not wait.

    Args:
        handle: What `allreduce_async` or another asynchronous form returned.

    Example:

    >>> handle = hvd_keras.torch.allreduce_async(torch.ones(2))
    >>> result = hvd_keras.torch.synchronize(handle)
    >>> hvd_keras.torch.poll(handle)
    True
    """
    return handle.is_done


@uncompiled
def synchronize(handle: Handle) -> Any:
    """Waits for the end of a collective and returns its result.

    Until then nobody may change the tensors of the call. A second call returns
    the same result.

    Args:
        handle: What `allreduce_async` or another asynchronous form returned.

    Returns:
        What the collective returns, a tensor, or a list of them for a group.

    Raises:
        HvdError: What the collective raises.

    Example, on 2 ranks:

    >>> handle = hvd_keras.torch.allgather_async(torch.tensor([hvd.rank()]))
    >>> hvd_keras.torch.synchronize(handle)
    tensor([0, 1])
    """
    return handle.wait()
