"""Steps that a rank has begun, and that have not run yet, are no mistake."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras import _backends
from hvd_keras._job import training_step


class Late(keras.layers.Layer):
    """Lets a rank compute later than its Python has gone on."""

    def call(self, x):
        import jax
        import jax.numpy as jnp

        wide = jnp.broadcast_to(jnp.sum(jax.lax.stop_gradient(x)), (400, 400))
        num_products = 1 + 30 * hvd.rank()
        late = jax.lax.fori_loop(
            0, num_products, lambda n, w: jnp.tanh(w @ w), wide
        )
        return x + 0.0 * late[0, 0]


class OwnStep(keras.Model):
    def train_step(self, state, data):
        return super().train_step(state, data)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="others run steps at once"
)
@pytest.mark.parametrize("kind", [keras.Model, OwnStep])
def test_a_rank_may_compute_later_than_another(kind, monkeypatch) -> None:
    import jax

    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1)(Late()(keras.layers.Dense(4)(inputs)))
    model = kind(inputs, outputs)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.random.default_rng(1).normal(size=(24 * hvd.size(), 4))
    x = x.astype(np.float32)
    share = hvd.shard((x, x[:, :1]), batch_size=2)
    told: list[str] = []
    wait, tell = jax.block_until_ready, training_step.tell
    monkeypatch.setattr(
        _backends.current(),
        "wait_for_step",
        lambda result: (told.append("has run"), wait(result)),
        raising=False,
    )
    monkeypatch.setattr(
        training_step,
        "tell",
        lambda fit, step, is_over: (
            told.append("over" if is_over else "begins"),
            tell(fit, step, is_over),
        ),
    )
    model.fit(share, epochs=2, verbose=0)
    # JAX returns before a step has run: what the engine hears must not.
    num_steps = told.count("has run")
    assert told == ["begins", "has run", "over"] * num_steps
    assert (num_steps > 0) == (kind is OwnStep)
    found = hvd.allgather_object(model.get_weights())
    for weights in found[1:]:
        for mine, other in zip(found[0], weights, strict=True):
            np.testing.assert_array_equal(mine, other)
