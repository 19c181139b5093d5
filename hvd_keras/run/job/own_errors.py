"""Errors of the user's program, which no restart mends."""

from __future__ import annotations

from collections.abc import Collection

from hvd_keras._records.blame import Tells, tells

# What a restart does not mend.
_OWN = (Tells.PROGRAM, Tells.ALL)


class OwnErrors:
    """The errors with which members have ended by themselves."""

    def __init__(self) -> None:
        self._members: set[int] = set()  # that had one
        self._generations: dict[str, set[int]] = {}  # by text

    def note(self, member: int, generation: int, told: str) -> None:
        """Notes how a member has failed.

        Args:
            member: Its number.
            generation: The last generation that it was in; 0: none.
            told: The error that it has told; "": none.
        """
        if told and tells(told) in _OWN:
            self._members.add(member)
            self._generations.setdefault(told, set()).add(generation)

    def has_repeated(self, member: int, told: str) -> bool:
        """Whether a member had an error that has ended a generation before."""
        return member in self._members and len(self._generations[told]) > 1

    def have_all(self, members: Collection[int]) -> bool:
        """Whether all of these members had errors of their own."""
        return bool(members) and self._members.issuperset(members)
