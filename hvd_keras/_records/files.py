"""The files of a timeline."""

from __future__ import annotations

import os
import re
from pathlib import Path

VERSION = 1  # of their format
NAME = re.compile(r"timeline_rank_(\d+)\.hvdtrace")
_LATER = re.compile(r"epoch_(\d+)")
_ALONE = re.compile(r"member_\d+")


def file_name(rank: int) -> str:
    """The name of a rank's file in the folder."""
    return f"timeline_rank_{rank}.hvdtrace"


def folder_of_epoch(folder: str, epoch: int) -> str:
    """Where the ranks of a membership write; the first one: in `folder`."""
    return folder if epoch <= 1 else os.path.join(folder, f"epoch_{epoch}")


def folder_of_member(folder: str, member: int) -> str:
    """Where a member of an elastic job writes before it is in an epoch."""
    return os.path.join(folder, f"member_{member}")


def folders_of_epochs(folder: str) -> list[str]:
    """Returns the folders that hold timelines, by the epochs."""
    found = {
        int(name[1]): path
        for path in Path(folder).glob("epoch_*")
        if (name := _LATER.fullmatch(path.name))
    }
    paths = [Path(folder), *(found[epoch] for epoch in sorted(found))]
    return [str(path) for path in paths if timelines_in(path)]


def timelines_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Returns the files of the ranks of one membership."""
    return [p for p in Path(folder).glob("*") if NAME.fullmatch(p.name)]


def remove_all(folder: str) -> None:
    """Removes all timelines in `folder`, of whatever epoch."""
    for inner in [Path(folder), *Path(folder).glob("*")]:
        is_ours = _LATER.fullmatch(inner.name) or _ALONE.fullmatch(inner.name)
        if inner == Path(folder) or is_ours:
            for path in timelines_in(inner):
                path.unlink(missing_ok=True)
