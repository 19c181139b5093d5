"""Lets the ranks import hvd_keras under the name `horovod`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SITE = str(Path(__file__).parents[2] / "compat" / "_site")


_PLACE = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"


def of_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank, with Horovod's names for its place added."""
    if "HVD_MEMBER" in environ:  # its place changes
        return {**environ, "HOROVOD_ELASTIC": "1"}
    place = {
        f"HOROVOD_{name}": environ[f"HVD_{name}"] for name in _PLACE.split()
    }
    return {**environ, **place}
