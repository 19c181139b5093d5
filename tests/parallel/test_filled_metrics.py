"""Metrics leave out rows that only fill a batch, or are named."""

from __future__ import annotations

from filled_metrics import (  # noqa: F401
    lines,
    test_means_of_values_leave_filling_out,
    test_metrics_that_count_rows_are_right_or_told,
    test_metrics_that_weigh_rows_leave_filling_out,
    test_validation_in_fit_leaves_filling_out,
    test_weights_of_the_user_stay,
)
