"""A distributed tape gives one process's gradients of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd

optimizers = keras.optimizers
needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


@pytest.fixture(params=[False, True], ids=["eager", "function"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return tf.function if request.param else lambda function: function


@pytest.fixture
def dynamic_sets() -> Iterator[None]:
    """Lets the test add sets, and removes them at its end."""
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
    hvd.init()


def train(
    model: keras.Model,
    data: tf.data.Dataset,
    wrap: Callable[[Any], Any],
    compiled: Callable[..., Any],
    optimizer: Any = None,
) -> None:
    optimizer = optimizer or optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @compiled
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        tape = wrap(tape)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in data:
        step(x, y)


def plain(tape: tf.GradientTape) -> tf.GradientTape:
    return tape


# Adam's slots treat rows without a gradient differently in dense gradients.
OPTIONS: dict[str, tuple[Callable[[], keras.Model], dict[str, Any]]] = {
    "default": (kt.functional_model, {}),
    "embedding": (kt.embedding_model, {}),
    "as_dense": (kt.embedding_model, {"sparse_as_dense": True}),
    "merged": (kt.embedding_model, {"merge_slices": True}),
    "predivided": (kt.functional_model, {"gradient_predivide_factor": 4.0}),
    "two_groups": (kt.functional_model, {"groups": 2}),
    "num_groups": (kt.functional_model, {"num_groups": 3}),
}


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    "case", thorough_except(OPTIONS, "default", "embedding", "two_groups")
)
def test_ranks_end_with_the_weights_of_one_process(
    case: str, compiled: Callable[..., Any]
) -> None:
    make_model, options = OPTIONS[case]
    data = kt.regression_data()
    expected = kt.build(make_model)
    is_for_sgd = case in ("as_dense", "merged")
    make = (lambda: optimizers.SGD(0.1)) if is_for_sgd else lambda: None
    train(expected, kt.whole_batches(*data), plain, compiled, make())
    model = kt.build(make_model)
    train(
        model,
        kt.shares(*data),
        lambda tape: hvd.DistributedGradientTape(tape, **options),
        compiled,
        make(),
    )
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    kt.assert_equal_on_all_ranks(model.get_weights())


def squares(tape: tf.GradientTape, v: tf.Variable, factor: Any) -> Any:
    with tape:
        return tf.reduce_sum(factor * v * v)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_gradients_are_combined(
    op: hvd.ReduceOp,
    compression: str,
    compiled: Callable[..., Any],
    rank: int,
    size: int,
) -> None:
    v = tf.Variable([1.0, -2.0])

    @compiled
    def gradient() -> tf.Tensor:
        tape = tf.GradientTape()
        loss = squares(tape, v, float(rank + 1))
        return hvd.DistributedGradientTape(
            tape,
            op=op,
            compression=getattr(hvd.Compression, compression),
        ).gradient(loss, v)

    factor = (size + 1) / 2 * (size if op == hvd.Sum else 1)
    got = gradient()
    assert got.dtype == tf.float32
    np.testing.assert_array_equal(got, [2.0 * factor, -4.0 * factor])


def test_slices_of_one_index_are_merged_on_a_rank_if_asked(
    compiled: Callable[..., Any], rank: int, size: int
) -> None:
    table = tf.Variable(tf.zeros([9, 2]))
    words = tf.constant([3, rank % 2, 3, 3])

    @compiled
    def gradient() -> tf.IndexedSlices:
        tape = tf.GradientTape()
        with tape:
            loss = tf.reduce_sum(tf.gather(table, words))
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, merge_slices=True)
        return tape.gradient(loss, table)

    got = gradient()
    assert len(got.indices) == 2 * size
    expected = np.zeros([9, 2])
    for word in [3, 3, 3] * size + [other % 2 for other in range(size)]:
        expected[word] += 1
    np.testing.assert_array_equal(tf.convert_to_tensor(got), expected)


def test_adasum_of_gradients(rank: int, size: int) -> None:
    v = tf.Variable(tf.ones(size))
    with tf.GradientTape() as tape:
        loss = v[rank] * 2.0
    tape = hvd.DistributedGradientTape(
        tape, op=hvd.Adasum, sparse_as_dense=True
    )
    np.testing.assert_allclose(tape.gradient(loss, v), 2.0 * np.ones(size))


def test_sources_may_have_any_structure(
    compiled: Callable[..., Any], rank: int, size: int
) -> None:
    a, b, c = (tf.Variable([float(n)]) for n in (1, 2, 3))
    unused = tf.Variable([9.0])

    @compiled
    def gradients() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape = hvd.DistributedGradientTape(tape)
            loss = rank * (a * 2.0 + b * 3.0) + c * 5.0
        one = tape.gradient(loss, a)
        nested = tape.gradient(loss, {"x": [b, unused], "y": (c,)})
        zeros = tape.gradient(
            loss, [unused], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        scaled = tape.gradient(loss, [c], output_gradients=tf.constant([2.0]))
        return one, nested, zeros, scaled

    mean = (size - 1) / 2
    one, nested, zeros, scaled = gradients()
    assert one.numpy() == [2 * mean]
    assert nested["x"][0].numpy() == [3 * mean]
    assert nested["x"][1] is None
    assert nested["y"][0].numpy() == [5]
    assert zeros[0].numpy() == [0]
    assert scaled[0].numpy() == [10]


def test_tapes_may_be_nested(
    compiled: Callable[..., Any], rank: int, size: int
) -> None:
    v = tf.Variable(3.0)

    @compiled
    def second() -> tf.Tensor:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = (rank + 1.0) * v**3
            first = hvd.DistributedGradientTape(inner).gradient(loss, v)
        return first, hvd.DistributedGradientTape(outer).gradient(first, v)

    mean = (size + 1) / 2
    first, derivative = second()
    assert float(first) == mean * 27
    # The gradient of an average is an average, and the tape averages again.
    assert float(derivative) == mean * 18


def test_two_tapes_in_one_function_do_not_mix(rank: int, size: int) -> None:
    v, w = tf.Variable([1.0]), tf.Variable([1.0])

    @tf.function
    def both() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as one, tf.GradientTape() as two:
            losses = rank * v, rank * 10.0 * w
        one = hvd.DistributedGradientTape(one)
        two = hvd.DistributedGradientTape(two)
        return one.gradient(losses[0], [v]), two.gradient(losses[1], [w])

    for _ in range(10):
        (first,), (second,) = both()
        assert first.numpy() == [(size - 1) / 2]
        assert second.numpy() == [(size - 1) * 5]


def test_a_rank_may_trace_a_shape_that_the_others_do_not(
    rank: int, size: int
) -> None:
    v = tf.Variable([1.0])

    @tf.function
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = v * tf.reduce_sum(x)
        return hvd.DistributedGradientTape(tape).gradient(loss, v)

    for length, mean in ((2, 2.0), (3, 3.0 + 1.0 / size), (2, 2.0)):
        mine = length + (rank == 0 and length == 3)
        value = gradient(tf.ones([mine])).numpy()
        np.testing.assert_allclose(value, [mean], rtol=1e-6)


@needs_peers
def test_raises_when_ranks_hold_different_gradients(rank: int) -> None:
    v, w = tf.Variable([1.0]), tf.Variable([[2.0]])
    with tf.GradientTape() as tape:
        loss = v * 2.0 + (w[0] if rank == 0 else 0.0)
    tape = hvd.DistributedGradientTape(tape)
    with pytest.raises(hvd.MismatchError, match="bucket_0"):
        tape.gradient(loss, [v, w])


@needs_peers
@pytest.mark.parametrize("other", [1, 2], ids=["dense", "sparse"])
def test_raises_when_ranks_hold_gradients_of_different_sources(
    other: int, compiled: Callable[..., Any], rank: int
) -> None:
    sources = [tf.Variable([[float(n)]]) for n in range(4)]

    @compiled
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            used = sources[0 if rank == 0 else other]
            loss = tf.gather(used, [0]) if used is sources[2] else used**2
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)

    with pytest.raises(hvd.MismatchError, match="rank 0"):
        gradients()


@needs_peers
def test_raises_when_ranks_gather_gradients_of_different_sources(
    rank: int,
) -> None:
    v, w = tf.Variable([[1.0]]), tf.Variable([[2.0]])
    with tf.GradientTape() as tape:
        loss = tf.gather(v if rank == 0 else w, [0])
    with pytest.raises(hvd.MismatchError, match="rank 0"):
        hvd.DistributedGradientTape(tape).gradient(loss, [v, w])


@pytest.mark.parametrize("scale", [False, True])
def test_local_sources_keep_their_gradients(
    scale: bool, compiled: Callable[..., Any], rank: int, size: int
) -> None:
    v, w = tf.Variable([1.0]), tf.Variable([1.0])

    @compiled
    def gradients() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = (rank + 1.0) * (v + 4.0 * w)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(w)
        return (
            tape.gradient(loss, [v, w]),
            tape.get_local_and_global_gradients(loss, [v, w]),
        )

    divisor = size if scale else 1
    (of_v, of_w), (local, shared) = gradients()
    assert of_v.numpy() == [(size + 1) / 2]
    assert of_w.numpy() == np.float32([4 * (rank + 1) / divisor])
    ((local_source, local_gradient),) = local
    ((source, gradient),) = shared
    if compiled is not tf.function:
        assert local_source is w
        assert source is v
    assert local_gradient.numpy() == of_w.numpy()
    assert gradient.numpy() == of_v.numpy()


def test_gradients_of_local_layers_stay_on_their_rank(
    compiled: Callable[..., Any], rank: int, size: int
) -> None:
    model = kt.build(kt.functional_model)
    first, last = model.layers[1:]
    x = tf.ones([2, kt.NUM_FEATURES]) * (rank + 1.0)

    def gradients(wrap: Callable[[Any], Any]) -> list[np.ndarray]:
        @compiled
        def run() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            return wrap(tape).gradient(loss, model.trainable_variables)

        return [gradient.numpy() for gradient in run()]

    own = gradients(plain)
    got = gradients(
        lambda tape: hvd.PartialDistributedGradientTape(
            tape, local_layers=[first]
        )
    )
    num_local = len(first.trainable_variables)
    assert 0 < num_local < len(own) == num_local + len(last.trainable_variables)
    kt.assert_close(got[:num_local], [g / size for g in own[:num_local]], 1e-6)
    everywhere = hvd.allgather_object(own[num_local:])
    means = [np.mean(each, axis=0) for each in zip(*everywhere, strict=True)]
    kt.assert_close(got[num_local:], means, 1e-6)


@needs_peers
@pytest.mark.usefixtures("dynamic_sets")
def test_only_the_ranks_of_the_process_set_take_part(
    compiled: Callable[..., Any], rank: int, size: int
) -> None:
    some = hvd.add_process_set(range(size - 1))
    try:
        v, local = tf.Variable([1.0]), tf.Variable([1.0])

        @compiled
        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = (rank + 1.0) * (v + local)
            tape = hvd.DistributedGradientTape(tape, process_set=some)
            tape.register_local_source(local)
            return tape.gradient(loss, [v, local])

        of_v, of_local = gradients()
        assert of_v.numpy() == (rank + 1 if rank == size - 1 else size / 2)
        assert of_local * (some.size() if some.included() else 1) == rank + 1.0
    finally:
        hvd.remove_process_set(some)


def test_a_distributed_tape_is_not_wrapped_again() -> None:
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    assert isinstance(tape, tf.GradientTape)
    with pytest.raises(ValueError, match="once"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match="once"):
        hvd.PartialDistributedGradientTape(tape)


@pytest.mark.parametrize("loss_scaling", [False, True])
def test_tape_and_optimizer_are_refused_together(
    compiled: Callable[..., Any], loss_scaling: bool
) -> None:
    v = tf.Variable([1.0])
    optimizer = optimizers.SGD(0.1)
    if loss_scaling:
        optimizer = optimizers.LossScaleOptimizer(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer)
    optimizer.build([v])

    @compiled
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = v * 2.0
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, v)
        optimizer.apply([gradient], [v])

    with pytest.raises(ValueError, match="reduced once"):
        step()


def test_jacobians_are_refused() -> None:
    v = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        target = v * v
    tape = hvd.DistributedGradientTape(tape)
    with pytest.raises(NotImplementedError, match="jacobian"):
        tape.jacobian(target, v)


def test_local_source_must_be_a_variable() -> None:
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(TypeError, match="variable"):
        tape.register_local_source(3)
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])
    with pytest.raises(TypeError, match="GradientTape"):
        hvd.DistributedGradientTape(object())
