"""See tests/global_batches.py."""

from __future__ import annotations

from global_batches import (  # noqa: F401
    test_a_wrong_size_is_refused,
    test_batches_that_are_kept_are_split,
    test_fewer_rows_than_ranks_in_each_step_are_refused,
    test_n_ranks_take_the_steps_of_one_process,
)
