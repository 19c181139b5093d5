"""hvd_keras.compat and the package `horovod` behave like Horovod."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras
import hvd_keras.compat as compat
import hvd_keras.compat.horovod

import horovod.keras as horovod_keras  # isort: skip
import horovod.tensorflow as hvd  # isort: skip
import horovod.tensorflow.keras as keras_hvd  # isort: skip

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

MODULES = [
    "horovod",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.keras.callbacks",
    "horovod.keras.elastic",
    "horovod.tensorflow.compression",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.functions",
    "horovod.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic",
    "horovod.tensorflow.mpi_ops",
    "horovod.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util",
]
GONE = "mxnet spark.torch runner.launch tensorflow.data".split()

# Programs may pass these arguments by position; these are the defaults.
SIGNATURES = {
    hvd.allreduce: "tensor average=None device_dense='' device_sparse='' "
    "compression op=None prescale_factor=1.0 postscale_factor=1.0 name=None "
    "process_set ignore_name_scope=False",
    hvd.grouped_allreduce: "tensors average=None device_dense='' "
    "device_sparse='' compression op=None prescale_factor=1.0 "
    "postscale_factor=1.0 process_set ignore_name_scope=False name=None",
    hvd.allgather: "tensor name=None ignore_name_scope=False process_set",
    hvd.grouped_allgather: "tensors name=None ignore_name_scope=False "
    "process_set",
    hvd.broadcast: "tensor root_rank name=None ignore_name_scope=False "
    "process_set",
    hvd.broadcast_: "variables root_rank name=None process_set",
    hvd.alltoall: "tensor splits=None name=None ignore_name_scope=False "
    "process_set",
    hvd.reducescatter: "tensor device_dense='' compression op name=None "
    "process_set ignore_name_scope=False prescale_factor=1.0 "
    "postscale_factor=1.0",
    hvd.grouped_reducescatter: "tensors device_dense='' compression op "
    "process_set prescale_factor=1.0 postscale_factor=1.0",
    hvd.join: "",
    hvd.broadcast_variables: "variables root_rank process_set inplace=False",
    hvd.broadcast_object: "obj root_rank=0 session=None name=None process_set",
    hvd.broadcast_object_fn: "root_rank=0 session=None name=None process_set",
    hvd.allgather_object: "obj session=None name=None process_set",
    hvd.size_op: "process_set_id=0 name=None",
    hvd.rank_op: "name=None",
    hvd.DistributedOptimizer: "optimizer name=None use_locking=False "
    "device_dense='' device_sparse='' compression sparse_as_dense=False "
    "backward_passes_per_step=1 op gradient_predivide_factor=1.0 "
    "average_aggregated_gradients=False num_groups=0 groups=None process_set "
    "scale_local_gradients=True",
    hvd_keras.DistributedGradientTape: "gradtape device_dense='' "
    "device_sparse='' compression sparse_as_dense=False op "
    "gradient_predivide_factor=1.0 num_groups=0 groups=None process_set "
    "scale_local_gradients=True",
    keras_hvd.DistributedOptimizer: "optimizer name=None device_dense='' "
    "device_sparse='' compression sparse_as_dense=False "
    "gradient_predivide_factor=1.0 op backward_passes_per_step=1 "
    "average_aggregated_gradients=False num_groups=0 groups=None process_set "
    "scale_local_gradients=True",
    horovod_keras.PartialDistributedOptimizer: "optimizer name=None "
    "device_dense='' device_sparse='' compression sparse_as_dense=False "
    "gradient_predivide_factor=1.0 op backward_passes_per_step=1 "
    "average_aggregated_gradients=False groups=None process_set "
    "local_layers=None scale_local_gradients=True",
    keras_hvd.allreduce: "value name=None average=None prescale_factor=1.0 "
    "postscale_factor=1.0 op=None compression",
    keras_hvd.allgather: "value name=None",
    keras_hvd.broadcast: "value root_rank name=None",
    keras_hvd.reducescatter: "value name=None op",
    keras_hvd.load_model: "filepath custom_optimizers=None "
    "custom_objects=None compression legacy_opts=False",
    hvd.callbacks.BroadcastGlobalVariablesCallback: "root_rank device='' "
    "local_variables=None",
    hvd.callbacks.MetricAverageCallback: "device=''",
    hvd.callbacks.LearningRateScheduleCallback: "initial_lr multiplier "
    "start_epoch=0 end_epoch=None staircase=True momentum_correction=True "
    "steps_per_epoch=None",
    hvd.callbacks.LearningRateWarmupCallback: "initial_lr warmup_epochs=5 "
    "momentum_correction=True steps_per_epoch=None verbose=0",
    hvd.init: "comm=None process_sets=None",
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_horovod_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__name__)
def test_arguments_are_horovods(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    expected = SIGNATURES[function].split()
    theirs = [
        name
        for name, each in parameters.items()
        if each.kind is not each.KEYWORD_ONLY
    ]
    assert theirs == [each.split("=")[0] for each in expected]
    for each in expected:
        name, _, default = each.partition("=")
        assert parameters[name].kind is parameters[name].POSITIONAL_OR_KEYWORD
        if default:
            assert repr(parameters[name].default) == default, name


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    ("dtype", "quotient"),
    [("uint8", "float32"), ("int32", "float64"), ("int64", "float64")],
)
def test_averages_of_integer_slices_are_quotients(
    rank: int, size: int, dtype: str, quotient: str, in_function: bool
) -> None:
    def both() -> Any:
        values = tf.cast([[200 + rank], [1]], dtype)
        slices = tf.IndexedSlices(values, tf.constant([0, 1]), [2, 1])
        floats = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]), [2, 1])
        (grouped, plain) = hvd.grouped_allreduce([slices, floats])
        return [
            tf.convert_to_tensor(found)
            for found in (hvd.allreduce(slices), grouped, plain)
        ]

    one, grouped, plain = (tf.function(both) if in_function else both)()
    wanted = [[200 + (size - 1) / 2], [1]]
    for found in (one, grouped):
        assert found.dtype == quotient
        np.testing.assert_allclose(found, wanted, 1e-6)
    assert plain.dtype == "float32"
    # A sum stays what it is.
    slices = tf.IndexedSlices(tf.constant([[2]]), tf.constant([0]), [1, 1])
    assert hvd.allreduce(slices, op=hvd.Sum).values.dtype == "int32"


def test_adasum_of_integers_is_an_unknown_error() -> None:
    for call in (
        lambda: hvd.allreduce(tf.constant([1, 2]), op=hvd.Adasum),
        lambda: hvd.grouped_allreduce([tf.constant([1])], op=hvd.Adasum),
    ):
        with pytest.raises(tf.errors.UnknownError, match="int32") as raised:
            call()
        assert isinstance(raised.value, hvd_keras.InvalidArgumentError)
    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Adasum), x)


def test_average_is_the_old_name_of_op(rank: int, size: int) -> None:
    x = tf.constant([float(rank)])
    mean = (size - 1) / 2
    assert hvd.allreduce(x).numpy() == [mean]
    assert hvd.allreduce(x, True).numpy() == [mean]
    assert hvd.allreduce(x, average=False).numpy() == [mean * size]
    assert compat.allreduce(x, op=compat.Sum).numpy() == [mean * size]
    (grouped,) = hvd.grouped_allreduce([x], average=False)
    assert grouped.numpy() == [mean * size]
    with pytest.raises(ValueError, match="exclude each other"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    with pytest.raises(TypeError, match="op"):
        hvd_keras.allreduce(x, average=False)


def test_devices_and_compression_are_accepted(rank: int, size: int) -> None:
    got = hvd.allreduce(
        tf.constant([1.0 * rank]),
        None,
        "/cpu:0",
        "/cpu:0",
        hvd.Compression.fp16,
    )
    assert got.dtype == tf.float32
    assert got.numpy() == [(size - 1) / 2]


def test_value_helpers(rank: int, size: int) -> None:
    for module in (keras_hvd, horovod_keras):
        assert float(module.allreduce(float(rank))) == (size - 1) / 2
        assert float(module.allreduce(rank, "v", False)) == sum(range(size))
        got = module.allgather([rank])
        assert got.numpy().tolist() == list(range(size))
        assert int(module.broadcast(rank, size - 1)) == size - 1
        rows = module.reducescatter(np.ones([size, 2]), op=hvd.Sum)
        assert rows.numpy().tolist() == [[size, size]]


def test_gradient_takes_generic_names_by_position(rank: int, size: int) -> None:
    v = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = v * float(rank)
    tape = hvd.DistributedGradientTape(tape, "", "", hvd.Compression.none)
    (gradient,) = tape.gradient(loss, [v], None, True)
    assert gradient.numpy() == [(size - 1) / 2]


def test_optimizer_by_position_and_its_defaults(rank: int, size: int) -> None:
    v = tf.Variable([0.0])
    optimizer = keras_hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), "by_position", backward_passes_per_step=2
    )
    optimizer.build([v])
    for _ in range(2):
        optimizer.apply([tf.constant([float(rank)])], [v])
    # Horovod sums accumulated gradients.
    assert v.numpy() == [-2 * (size - 1) / 2]


def test_variables_and_lr_work_as_in_keras_2(rank: int) -> None:
    model = kt.build(kt.functional_model)
    optimizer = keras.optimizers.Adam(0.01 * (rank + 1))
    optimizer.build(model.trainable_variables)
    assert optimizer.variables() == optimizer.variables
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    np.testing.assert_allclose(float(optimizer.lr), 0.01, rtol=1e-6)
    optimizer.lr = 0.5
    assert float(optimizer.learning_rate) == 0.5
    for backend, rate in ((tf.keras.backend, 0.25), (keras.backend, 0.125)):
        backend.set_value(optimizer.lr, rate)
        assert backend.get_value(optimizer.lr) == rate
    outer = keras.optimizers.LossScaleOptimizer(optimizer)
    assert outer.variables() == outer.variables
    assert len(outer.variables) > len(optimizer.variables)


def test_metrics_are_averaged_outside_of_fit(rank: int, size: int) -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(kt.build(kt.functional_model))
    logs = {"loss": float(rank), "accuracy": 1.0}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": (size - 1) / 2, "accuracy": 1.0}


def test_local_variables_are_not_broadcast(rank: int) -> None:
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)]
    )
    model.set_weights([np.full(w.shape, rank) for w in model.get_weights()])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=model.layers[0].weights
    )
    model.fit(np.ones([1, 1]), np.ones([1, 1]), callbacks=[callback], verbose=0)
    for weight in model.layers[0].get_weights():
        assert (weight == rank).all()
    for weight in model.layers[1].get_weights():
        assert (weight == 0).all()


def test_variables_are_broadcast_within_a_function(rank: int) -> None:
    v, w = tf.Variable([float(rank)]), keras.Variable([rank + 1.0])

    @tf.function
    def step(first: bool) -> None:
        v.assign_add([2.0])
        if first:
            hvd.broadcast_variables([v], root_rank=0)
            hvd.broadcast_variables([w], root_rank=0)

    step(True)
    assert v.numpy() == [2.0]
    assert w.numpy() == [1.0]


def test_tf1_optimizer_reduces(rank: int, size: int) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", initializer=[float(rank)])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum
        )
        step = optimizer.minimize((rank + 1.0) * v)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        session.run(step)
        assert session.run(v) == [-size * (size + 1) / 2]
        with pytest.raises(ValueError, match="once"):
            hvd.DistributedOptimizer(optimizer)


@pytest.mark.parametrize(
    "use",
    [
        lambda: keras_hvd.load_model("x", legacy_opts=True),
    ],
)
def test_missing_functions_say_so_when_used(use: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError):
        use()


def test_unknown_names_are_named() -> None:
    with pytest.raises(AttributeError, match=r"horovod\.mxnet"):
        importlib.import_module("horovod").mxnet  # noqa: B018


@pytest.mark.parametrize("name", GONE)
def test_modules_that_are_gone_say_so(name: str) -> None:
    with pytest.raises(ImportError, match=f"no `horovod.{name}`: ") as raised:
        importlib.import_module(f"horovod.{name}")
    assert type(raised.value) is ImportError


def test_helpers_of_horovod_are_there() -> None:
    for module in (compat, hvd, importlib.import_module("horovod.common.util")):
        assert module.extension_available("tensorflow")
        assert module.extension_available("torch")
        assert not module.extension_available("mxnet")
        module.check_extension("horovod.tensorflow", "X", __file__, "mpi_lib")
        with pytest.raises(ImportError, match=r"horovod\.mxnet"):
            module.check_extension("horovod.mxnet", "X", __file__)
        assert module.is_version_greater_equal_than("2.21.0", "2.9")
        assert not module.is_version_greater_equal_than("2.9", "2.21.0rc1")
    assert hvd.mpi_ops.allreduce is compat.mpi_ops.allreduce
    assert hvd.mpi_ops.rank() == hvd.rank()
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    references = hvd.util.vars_to_refs(variables)
    assert {references: 1}[references] == 1
    first, (second,) = hvd.util.refs_to_vars(references)
    assert first is variables[0]
    assert second is variables[1][0]


@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.SGD, tf.compat.v1.train.AdamOptimizer]
)
@pytest.mark.parametrize(
    "options",
    [
        {"average_aggregated_gradients": True, "backward_passes_per_step": 2},
        {"gradient_predivide_factor": 2.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_horovods_adasum_refuses(
    optimizer: Callable[[], Any], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        hvd.DistributedOptimizer(optimizer(), op=hvd.Adasum, **options)


def test_failures_are_horovods_internal_errors() -> None:
    internal = importlib.import_module(
        "horovod.common.exceptions"
    ).HorovodInternalError
    for kind in ("PeerLost", "Stalled", "Shutdown", "Internal"):
        assert issubclass(getattr(hvd_keras, f"{kind}Error"), internal)
    for kind in ("Mismatch", "InvalidArgument", "NotInitialized"):
        assert not issubclass(getattr(hvd_keras, f"{kind}Error"), internal)
