"""Logs that are no metric's are those of all rows of a step."""

from __future__ import annotations

from raw_logs import (  # noqa: F401
    test_logs_of_shares_are_those_of_all_rows,
    test_logs_of_steps_that_python_runs_are_those_of_all_rows,
    test_logs_of_unequal_arrays_are_those_of_all_rows,
)
