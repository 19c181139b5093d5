"""What `hvdrun --verify` sets in a process; elsewhere all of it is off.

`hvd_keras._verify` does the work. This module is what lower layers ask.
"""

from __future__ import annotations

_num_steps = 0
_num_merged = 1


def begin(num_steps: int, num_merged: int) -> None:
    """Notes that this process is part of a comparison.

    Args:
        num_steps: Steps that are compared.
        num_merged: The ranks that this one process stands for; 1: it is one of
            them.
    """
    global _num_steps, _num_merged
    _num_steps, _num_merged = num_steps, num_merged


def num_steps() -> int:
    """Returns how many steps are compared; 0: this is no comparison."""
    return _num_steps


def num_merged() -> int:
    """Returns how many ranks' batches this process has as one; usually 1."""
    return _num_merged
