"""Logs that are no metric's are those of all rows of a step."""

from __future__ import annotations

from raw_logs import (  # noqa: F401
    test_logs_of_batches_of_any_length_are_those_of_all_rows,
    test_logs_of_shares_are_those_of_all_rows,
    test_logs_of_unequal_arrays_are_those_of_all_rows,
)
