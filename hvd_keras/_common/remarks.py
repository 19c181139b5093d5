"""What the user of a job should read at its end, beside the log."""

from __future__ import annotations

from typing import NamedTuple

# What several ranks say of it is told once.
TRAINS_ALONE = "trains alone"
SAME_DATA = "same data"


class Remark(NamedTuple):
    """Words for the user.

    Attributes:
        about: Of the remarks with the same `about`, the first counts.
        text: One line.
        fewest: How many ranks must say it before it counts.
    """

    about: str
    text: str
    fewest: int = 1

    def packed(self) -> str:
        """Returns this as a text."""
        return f"{self.fewest}\n{self.about}\n{self.text}"

    @classmethod
    def of_packed(cls, text: str) -> Remark:
        """Returns what `packed` has packed.

        Raises:
            ValueError: It is something else.
        """
        fewest, about, words = text.split("\n", 2)
        return cls(about, words, int(fewest))


_kept: dict[str, Remark] = {}


def keep(text: str, about: str = "", fewest: int = 1) -> None:
    """Keeps a remark until the end of the job."""
    _kept.setdefault(about or text, Remark(about or text, text, fewest))


def take() -> list[Remark]:
    """Returns what was kept, once."""
    found = list(_kept.values())
    _kept.clear()
    return found
