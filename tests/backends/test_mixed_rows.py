"""See tests/mixed_rows.py."""

from __future__ import annotations

import pytest
from mixed_rows import (  # noqa: F401
    test_losses_of_several_rows_are_told,
    test_losses_of_single_rows_are_not,
    test_losses_of_whole_batches_are_told,
)

pytestmark = pytest.mark.thorough(4)
