"""The rest of an epoch of arrays goes on, on JAX and torch."""

from __future__ import annotations

import keras
import numpy as np
import small_training as small

import hvd_keras as hvd
from hvd_keras.data.position import Position, handle_of


def test_a_fit_begins_with_the_row_that_was_sought() -> None:
    x, y = small.data(12 * hvd.size())
    share = hvd.shard((x, y), batch_size=2, shuffle=True, seed=3)
    whole = [batch[0] for batch in share]
    handle = handle_of(share)
    assert handle is not None
    assert handle.position_at_end() == Position(1, 0)
    handle.seek(Position(0, 8 * hvd.size()))
    rest = [batch[0] for batch in share]
    np.testing.assert_array_equal(rest, whole[4:])
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    handle.seek(Position(5, 8 * hvd.size()))
    model = small.model()
    model.compile("sgd", "mse")
    model.fit(share, epochs=2, shuffle=False, verbose=0, callbacks=[note])
    assert seen == [*range(2), *range(6)]
    assert handle.position_at_end() == Position(7, 0)
