"""Programs that catch errors stay right; see `caught_programs`."""

from __future__ import annotations

import caught_programs
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

RUNNER = caught_programs.Runner(hvd, tf.constant)


@pytest.mark.parametrize("seed", caught_programs.seeds(30))
def test_a_program_with_caught_errors(seed: int) -> None:
    RUNNER.run(caught_programs.draw(seed, hvd.size()))
