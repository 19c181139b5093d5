"""Which side of a network that has come apart may go on, and write files."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_keras import _native
from hvd_keras.exceptions import PeerLostError


def may_go_on(lost: Sequence[int], size: int) -> bool:
    """Whether ranks may go on without others, which may run as well.

    At most one side of a network may: the one with more than half of all ranks.
    If each has half, it is the one with rank 0.

    Args:
        lost: The ranks that this side has lost.
        size: The number of all ranks.
    """
    return bool(_native.core().may_go_on(list(lost), size))


def check_may_write(what: str) -> None:
    """Does nothing unless this side of the network must end.

    Args:
        what: What would be written, for the message.

    Raises:
        PeerLostError: It must; another side may write the same file.
    """
    if _native.core().is_minority():
        raise PeerLostError(
            f"{what} must not write: this side of the network has lost the "
            "others and is not the one that goes on."
        )
