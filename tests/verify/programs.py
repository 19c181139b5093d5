"""Programs for `hvdrun --verify`; each is a function that trains."""

from __future__ import annotations

from verify.right import RIGHT
from verify.wrong import WRONG

ALL = {**RIGHT, **{name: found for name, (found, _) in WRONG.items()}}
