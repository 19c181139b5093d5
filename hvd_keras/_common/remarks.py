"""What the user of a job should read at its end, beside the log."""

from __future__ import annotations

from typing import NamedTuple

# What several ranks say of it is told once.
TRAINS_ALONE = "trains alone"
SAME_DATA = "same data"
OTHER_ROWS = "other rows"


class Remark(NamedTuple):
    """Words for the user.

    Attributes:
        about: Of the remarks with the same `about`, the first counts.
        text: One line; "": that of another rank, if one has it.
        fewest: How many ranks must say it before it counts.
        value: If there is one, a list of numbers or texts as JSON: what counts
            is that they differ by rank. Of a text, the first word is a checksum
            that no user needs; "" is not known.
    """

    about: str
    text: str
    fewest: int = 1
    value: str = ""

    def packed(self) -> str:
        """Returns this as a text."""
        return f"{self.fewest}\n{self.about}\n{self.value}\n{self.text}"

    @classmethod
    def of_packed(cls, text: str) -> Remark:
        """Returns what `packed` has packed.

        Raises:
            ValueError: It is something else.
        """
        fewest, about, value, words = text.split("\n", 3)
        return cls(about, words, int(fewest), value)


_kept: dict[str, Remark] = {}


def keep(text: str, about: str = "", fewest: int = 1, value: str = "") -> None:
    """Keeps a remark until the end of the job."""
    about = about or text
    if about not in _kept or not _kept[about].text:
        _kept[about] = Remark(about, text, fewest, value)


def take() -> list[Remark]:
    """Returns what was kept, once."""
    found = list(_kept.values())
    _kept.clear()
    return found
