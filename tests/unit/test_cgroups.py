from __future__ import annotations

import math
from pathlib import Path

import pytest

from hvd_keras.run.system.cgroups import cpu_limit

_V1 = {"cpu.cfs_quota_us": "{quota}\n", "cpu.cfs_period_us": "100000\n"}
_V2 = {"cpu.max": "{quota} 100000\n"}


def _limit(folder: Path, own: str, **quotas: object) -> float:
    (folder / "own").write_text(own)
    for name, quota in quotas.items():
        group = folder / "root" / name.replace("__", "/")
        group.mkdir(parents=True, exist_ok=True)
        is_v1 = name.startswith("cpu")
        for file, text in (_V1 if is_v1 else _V2).items():
            (group / file).write_text(text.format(quota=quota))
    return cpu_limit(folder / "root", folder / "own")


@pytest.mark.parametrize("tree", ["cpu", "cpuacct,cpu", "cpu,cpuacct"])
def test_quota_of_version_1_counts(tree: str, tmp_path: Path) -> None:
    own = "4:memory:/a\n3:cpu,cpuacct:/docker/b\n0::/\n"
    assert _limit(tmp_path, own, **{tree: 150000}) == 1.5


def test_quota_of_a_group_above_counts(tmp_path: Path) -> None:
    own = "0::/user/job/step\n"
    quotas = {"user__job__step": "max", "user__job": 300000, "other": 100000}
    assert _limit(tmp_path, own, **quotas) == 3.0


def test_smallest_quota_counts(tmp_path: Path) -> None:
    quotas = {"cpu__a": 50000, "cpu": -1}
    assert _limit(tmp_path, "2:cpu:/a\n", **quotas) == 0.5


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    assert _limit(tmp_path, "2:cpu:/a\n0::/x\n", cpu=-1, x="max") == math.inf
    assert cpu_limit(tmp_path / "none", tmp_path / "none") == math.inf
