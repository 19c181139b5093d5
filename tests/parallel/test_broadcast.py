"""`hvd.broadcast`, as `ops/broadcast.py`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

DTYPES = ["bool", "float16", "bfloat16", "float32", "float64"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_the_roots_tensor(run, rank, size, dtype: str) -> None:
    def values(root: int) -> np.ndarray:
        return np.array([[root, 1], [2, 3]]).astype(
            tf.as_dtype(dtype).as_numpy_dtype
        )

    results = run(
        lambda x: [hvd.broadcast(x, root) for root in range(size)],
        values(rank),
    )
    for root, result in enumerate(results):
        assert result.dtype == values(0).dtype
        np.testing.assert_array_equal(result, values(root))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1_000_003,)])
def test_broadcast_of_any_shape(run, rank, size, shape) -> None:
    result = run(
        lambda x: hvd.broadcast(x, size - 1), np.full(shape, rank, "f4")
    )
    np.testing.assert_array_equal(result, np.full(shape, size - 1, "f4"))


def test_values_of_other_ranks_do_not_count(run, rank) -> None:
    value = np.float32(1 if rank == 0 else np.nan)
    assert run(lambda x: hvd.broadcast(x, 0), value) == 1


def test_input_with_other_uses_keeps_its_value(run, rank) -> None:
    def send(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shifted = x + 1
        return hvd.broadcast(shifted, 0), shifted * 1

    sent, kept = run(send, np.full([50], rank, "f4"))
    np.testing.assert_array_equal(sent, [1] * 50)
    np.testing.assert_array_equal(kept, [rank + 1] * 50)


def test_variables_keep_their_value(rank) -> None:
    for variable in (tf.Variable([rank, 1]), keras.Variable([rank, 1])):
        np.testing.assert_array_equal(hvd.broadcast(variable, 0), [0, 1])
        np.testing.assert_array_equal(variable, [rank, 1])


def test_shape_is_inferred() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def send(x: tf.Tensor) -> tf.Tensor:
        assert hvd.broadcast(x, 0).shape.as_list() == [None, 3]
        return x

    send.get_concrete_function()


def test_gradient_is_the_sum_at_the_root(run, rank, size) -> None:
    root = size - 1

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.broadcast(x, root, name="forward")
            loss = (rank + 1) * tf.reduce_sum(y * y)
        return tape.gradient(loss, x)

    result = run(gradient, np.array([1, 2], "f4") * rank)
    total = 2 * root * np.array([1, 2]) * size * (size + 1) / 2
    np.testing.assert_array_equal(result, total if rank == root else [0, 0])


@pytest.mark.parametrize("root_rank", [-1, 99, 1.0, True, None, "0"])
def test_raises_when_root_rank_is_not_a_rank(root_rank, rank, size) -> None:
    with pytest.raises(ValueError, match="root_rank") as raised:
        hvd.broadcast(1.0, root_rank, name="bad root")
    assert isinstance(raised.value, hvd.exceptions.InvalidArgumentError)
    text = str(raised.value)
    assert f"[0, {size})" in text
    assert f"root_rank={root_rank!r} (rank {rank})" in text
    assert "'bad root'" in text


def test_root_rank_may_be_an_integer_of_numpy(rank, size) -> None:
    root, variable = np.int64(size - 1), tf.Variable(rank)
    assert hvd.broadcast(rank, root) == size - 1
    assert hvd.broadcast_object(rank, root) == size - 1
    hvd.broadcast_variables([variable], root)
    assert variable == size - 1
    for call in (hvd.broadcast_variables, hvd.broadcast_, hvd.broadcast_object):
        with pytest.raises(hvd.InvalidArgumentError, match="integer in"):
            call([variable], True)


def test_broadcast_in_place(process_set, rank) -> None:
    root = process_set.ranks[-1]
    variables = [
        tf.Variable(rank),
        keras.Variable([float(rank)] * 3),
        tf.Variable(tf.fill([2, 0], rank)),
        keras.Variable([rank], dtype="bfloat16"),
    ]
    results = hvd.broadcast_(variables, root, process_set=process_set)
    for variable, result in zip(variables, results, strict=True):
        np.testing.assert_array_equal(variable.numpy(), result.numpy())
        expected = np.full(variable.shape, root)
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_broadcast_in_place_in_a_function(rank, size) -> None:
    variables = [tf.Variable(float(rank)), keras.Variable([float(rank)])]

    @tf.function
    def step() -> tf.Tensor:
        variables[0].assign_add(1.0)
        hvd.broadcast_(variables, size - 1)
        return variables[0] * 2.0

    assert step() == 2 * size
    assert variables[0] == size
    assert variables[1].numpy() == [size - 1]


@pytest.mark.parametrize("use_resource", [True, False])
def test_broadcast_in_place_in_a_graph(rank, size, use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(
                f"v{i}", initializer=[rank, i], use_resource=use_resource
            )
            for i in range(2)
        ]
        results = hvd.broadcast_(variables, size - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        values = session.run(results)
        np.testing.assert_array_equal(values, [[size - 1, 0], [size - 1, 1]])
        np.testing.assert_array_equal(session.run(variables), values)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ([], "`variables` must hold one or more"),
        ([tf.constant(1)], "must be TensorFlow or Keras variables"),
        ([None], "NoneType"),
        ([tf.Variable("text")], "string"),
    ],
    ids=str,
)
def test_broadcast_in_place_raises_for_bad_arguments(
    variables, text: str
) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match=text):
        hvd.broadcast_(variables, 0)


def test_an_error_in_a_layer_keeps_its_text() -> None:
    class Broadcasts(keras.layers.Layer):
        def call(self, x):
            return hvd.broadcast(x, hvd.size())

    with pytest.raises(hvd.InvalidArgumentError, match="`root_rank` must"):
        Broadcasts()(keras.Input((3,)))


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_broadcast_in_place_of_other_shapes(rank) -> None:
    variable = tf.Variable(tf.zeros([2 + (rank == 0)]))
    with pytest.raises(hvd.MismatchError, match=r"\[3\] on rank 0"):
        hvd.broadcast_([variable], 0, name="other shapes")
