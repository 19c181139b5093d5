"""Objects and variables travel from rank to rank."""

from __future__ import annotations

import importlib
import math
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

OBJECTS = [
    None,
    True,
    -(1 << 200),
    math.inf,
    "text \N{GREEK SMALL LETTER ALPHA}",
    b"",
    {"epoch": 3, 4: [1.5, (None, b"x")], (1, "a"): {"nested": {}}},
    np.arange(12, dtype=np.int16).reshape(3, 4),
    [np.float32(1.5), np.bool_(True)],
]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    if isinstance(ours, list):
        return all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
@pytest.mark.parametrize("root_rank", [0, hvd.size() - 1])
def test_broadcast_object(obj: Any, root_rank: int) -> None:
    mine = obj if hvd.rank() == root_rank else object()  # ignored elsewhere
    assert same(hvd.broadcast_object(mine, root_rank), obj)


def test_broadcast_of_a_tensor_gives_an_array() -> None:
    value = hvd.broadcast_object(tf.constant([1, 2]) + hvd.rank())
    assert isinstance(value, np.ndarray)
    assert value.tolist() == [1, 2]


def test_broadcast_object_while_a_function_is_traced() -> None:
    @tf.function
    def function() -> tf.Tensor:
        return tf.constant(hvd.broadcast_object(hvd.rank() + 5))

    assert int(function()) == 5


def test_allgather_object_in_order_of_rank() -> None:
    objects = hvd.allgather_object({"rank": hvd.rank()}, name="order")
    assert objects == [{"rank": rank} for rank in range(hvd.size())]


def test_allgather_object_of_different_sizes() -> None:
    objects = hvd.allgather_object("x" * (1000 * hvd.rank()))
    assert [len(text) for text in objects] == [
        1000 * rank for rank in range(hvd.size())
    ]


def test_objects_are_copies() -> None:
    mine = [1]
    theirs = hvd.broadcast_object(mine)
    theirs.append(2)
    assert mine == [1]
    array = hvd.broadcast_object(np.zeros(2))
    array += 1.0


def test_unsupported_object_is_an_error_on_all_ranks() -> None:
    bad = {"run": [1, open]}
    with pytest.raises(TypeError, match=r"value\['run'\]\[1\].*rank 0"):
        hvd.broadcast_object(bad if hvd.rank() == 0 else None)
    last = hvd.size() - 1
    with pytest.raises(TypeError, match=rf"builtin_function.*rank {last}"):
        hvd.allgather_object(bad if hvd.rank() == last else 1)
    assert hvd.broadcast_object(3) == 3


@pytest.mark.parametrize("root_rank", [-1, hvd.size()])
def test_root_rank_must_be_a_rank(root_rank: int) -> None:
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast_object(1, root_rank)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast_variables([], root_rank)


@pytest.mark.parametrize("root_rank", [0, hvd.size() - 1])
def test_broadcast_variables(root_rank: int) -> None:
    rank = hvd.rank()
    dtypes = "float32 float16 bfloat16 int8 uint8 int64 bool".split()
    variables: list[Any] = [
        keras.Variable(np.full((2, 3), rank + 1), dtype=dtype)
        for dtype in dtypes
    ]
    variables.append(keras.Variable(np.zeros((0, 2))))
    variables.append(tf.Variable(rank + 1))
    variables.append(tf.Variable(tf.complex(float(rank + 1), 0.0)))
    variables.append(tf.Variable(math.nan if rank == root_rank else 0.0))
    hvd.broadcast_variables(variables, root_rank)
    for variable in variables[:-1]:
        expected = np.full(variable.shape, root_rank + 1)
        expected = expected.astype(variable.numpy().dtype)
        np.testing.assert_array_equal(variable.numpy(), expected)
    assert math.isnan(variables[-1].numpy())


def test_broadcast_variables_of_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("hvd_keras._values.steps")
    monkeypatch.setattr(module, "_STEP_BYTES", 100)
    variables = [
        keras.Variable(np.full(n, hvd.rank() + n)) for n in range(1, 40)
    ]
    hvd.broadcast_variables(variables)
    for n, variable in enumerate(variables, 1):
        np.testing.assert_array_equal(variable.numpy(), np.full(n, n))


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_different_variables_are_an_error_on_all_ranks() -> None:
    rank = hvd.rank()
    longer = [tf.Variable(0.0, name=f"v{n}") for n in range(2 + (rank == 0))]
    with pytest.raises(hvd.MismatchError, match=r"index 2.*v2"):
        hvd.broadcast_variables(longer)
    other = [tf.Variable(tf.zeros(3 + (rank == 0)), name="odd")]
    with pytest.raises(hvd.MismatchError, match=r"\[4\].*\[3\]"):
        hvd.broadcast_variables(other)
    kt.assert_equal_on_all_ranks([np.ones(2)])


@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables_in_a_function(inplace: bool) -> None:
    last = hvd.size() - 1
    variables = [tf.Variable(hvd.rank()), keras.Variable([hvd.rank() + 0.5])]

    @tf.function(autograph=False)
    def function() -> tf.Tensor:
        hvd.broadcast_variables(variables, last, inplace=inplace)
        return variables[0] + 1

    assert function() == last + 1
    assert variables[0] == last
    assert variables[1].numpy() == [last + 0.5]


@pytest.mark.parametrize("use_resource", [True, False])
def test_broadcast_global_variables(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(
                f"v{i}",
                initializer=float(hvd.rank() + i),
                use_resource=use_resource,
            )
            for i in range(2)
        ]
        broadcast = hvd.broadcast_global_variables(hvd.size() - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(broadcast)
        assert session.run(variables) == [hvd.size() - 1, hvd.size()]


def test_broadcast_global_variables_names_its_eager_replacement() -> None:
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_broadcast_object_fn(rank: int, size: int) -> None:
    broadcast = hvd.broadcast_object_fn(size - 1, session=None)
    assert broadcast(rank) == size - 1
    assert broadcast([rank]) == [size - 1]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ([tf.Variable("text")], "string"),
        ([tf.constant(1)], "EagerTensor"),
        ([np.ones(2)], "ndarray"),
        (tf.Variable([1.0], name="one"), "'one:0'"),
        (keras.Variable([1.0], name="one"), "'one'"),
        (3, "int"),
    ],
    ids=str,
)
def test_broadcast_variables_takes_lists_of_variables(
    variables: Any, text: str
) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match=text):
        hvd.broadcast_variables(variables)
    with pytest.raises(hvd.InvalidArgumentError, match=text):
        hvd.broadcast_(variables, 0)


def test_broadcast_variables_of_a_shape_that_may_change(rank: int) -> None:
    variable = tf.Variable([rank, rank], shape=[None])
    hvd.broadcast_variables([variable])
    assert variable.numpy().tolist() == [0, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_broadcast_variables_in_a_layer_that_casts(
    compiled: bool, rank: int
) -> None:
    class Broadcasts(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(initializer="ones")
            self.scale.assign(1.0 / (rank + 3))

        def call(self, x: Any) -> Any:
            hvd.broadcast_variables([self.scale])
            return x * self.scale

    layer = Broadcasts(dtype="mixed_float16")
    layer.build(None)
    call = tf.function(layer) if compiled else layer
    call(tf.ones(2, tf.float16))
    assert layer.scale.numpy() == np.float32(1 / 3)
