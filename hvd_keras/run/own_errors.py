"""Errors of the user's program, which no restart mends."""

from __future__ import annotations

from collections.abc import Collection

# Errors that tell of other ranks, or that somebody else has wanted. An HvdError
# that is nothing more special tells of what rank 0 has failed to do for all.
OF_OTHERS = (
    "PeerLostError", "StalledError", "ShutdownError", "JobEndedError",
    "InternalError", "UnavailableError", "KeyboardInterrupt", "HorovodInternal",
    "tensorflow.InternalError", "HvdError:",
)  # fmt: skip


class OwnErrors:
    """The errors with which members have ended by themselves."""

    def __init__(self) -> None:
        self._members: set[int] = set()  # that had one
        self._epochs: dict[str, set[int]] = {}  # by text

    def note(self, member: int, epoch: int, told: str) -> None:
        """Notes how a member has failed.

        Args:
            member: Its number.
            epoch: The last epoch that it was in; 0: none.
            told: The error that it has told; "": none.
        """
        if told and not told.startswith(OF_OTHERS):
            self._members.add(member)
            self._epochs.setdefault(told, set()).add(epoch)

    def has_repeated(self, member: int, told: str) -> bool:
        """Whether a member had an error that ended an earlier epoch too."""
        return member in self._members and len(self._epochs[told]) > 1

    def have_all(self, members: Collection[int]) -> bool:
        """Whether all of these members had errors of their own."""
        return bool(members) and self._members.issuperset(members)
