"""A loop of one's own on unequal shares is told what to do."""

from __future__ import annotations

from unequal_loops import (  # noqa: F401
    lines,
    test_a_loop_on_equal_rows_is_told_nothing,
    test_a_loop_on_unequal_rows_is_told_once,
    test_a_loop_with_a_global_mean_is_exact,
    test_a_share_that_is_only_looked_at_is_told_nothing,
    test_batches_of_a_py_dataset_of_other_lengths_are_told,
    test_keras_itself_is_told_nothing,
    test_last_batches_that_are_cut_are_told,
)
