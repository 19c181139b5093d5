"""The limit that control groups (a container, a batch system) set on CPU time.

Version 2 has one tree of groups, version 1 one for each controller. A group's
limit holds for the groups in it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cpu_limit(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Returns the cores that this process may keep busy; inf: no limit.

    Args:
        root: Where the trees of groups are mounted.
        own: The file that names the groups of this process.
    """
    return min(
        (_limit_of(group) for group in _groups(root, own)), default=math.inf
    )


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """Yields the directories of the groups that this process is in."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    # In a container, the path may be that on the host, of which the container
    # sees only the last part, as the root.
    lines += ["0::/", "0:cpu:/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        trees = ["."]
        if controllers:
            trees = ["cpu", "cpu,cpuacct", "cpuacct,cpu"]
        group = PurePosixPath(path.lstrip("/"))
        for tree in trees:
            for one in (group, *group.parents):
                yield root / tree / one


def _limit_of(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # "max", or version 1
        pass
    try:
        quota = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        limit = float(quota) / float(period)
    except (OSError, ValueError):
        return math.inf
    return limit if limit > 0 else math.inf  # -1: none
