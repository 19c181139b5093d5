"""What a process of a benchmark holds."""

from __future__ import annotations

import os


def held_by(pid: int) -> tuple[int, float]:
    """Returns how many descriptors a process has, and its memory in MB."""
    num_descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        num_pages = int(file.read().split()[1])
    return num_descriptors, num_pages * os.sysconf("SC_PAGE_SIZE") / 1e6
