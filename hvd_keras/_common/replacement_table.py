"""The one table of what hvd_keras replaces in other packages.

What belongs to one object (a model, a callback) is not in it.
"""

from __future__ import annotations

from typing import NamedTuple

_KERAS = "Keras 3.8 to 3.16"
_TENSORFLOW = "TensorFlow 2.18 to 2.21"


class Row(NamedTuple):
    """Attributes that a module of ours replaces.

    Attributes:
        owner: A class or module of another package. For a class, it is the one
            of its bases that defines the attribute. "keras.*": any module.
        names: The attributes, with spaces.
        home: Our module, below `hvd_keras`.
        why: What the new ones do.
        without: What goes wrong without them.
        seen: The versions that have run with them.
    """

    owner: str
    names: str
    home: str
    why: str
    without: str
    seen: str = _KERAS


# How a script writes files by what no audit hook hears of.
WRITE_FILES = {
    "tensorflow.io": "write_file",
    "tensorflow.io.TFRecordWriter": "__init__",
    "tensorflow.io.gfile": "copy makedirs mkdir remove rename rmtree",
    "tensorflow.io.gfile.GFile": "__init__",
    "tensorflow.saved_model": "save",
    "tensorflow.data.Dataset": "save",
    "tensorflow.train.Checkpoint": "save write",
    "tensorflow.train.CheckpointManager": "save",
    "tensorflow.summary": "create_file_writer",
    "h5py.File": "__init__",
    "torch": "save",
}
# Of these, what makes a file, and no other change.
WRITTEN_FILES = {
    owner: names
    for owner, names in WRITE_FILES.items()
    if owner != "tensorflow.io.gfile"
}
# And how it looks for them.
LOOK_FOR_FILES = {"tensorflow.io.gfile": "exists glob isdir listdir stat walk"}

TABLE = (
    *(
        Row(
            owner,
            names,
            "_job.written_files",
            "hear of files that the library opens by itself",
            "nobody tells that each rank has written the same file",
            f"{_TENSORFLOW}; h5py 3.14; torch 2.6 to 2.11",
        )
        for owner, names in WRITTEN_FILES.items()
    ),
    Row(
        "keras.src.distribution.distribution_lib",
        "distribution_lib set_distribution",
        "distribution._keras_api",
        "make the ranks the processes and devices of `keras.distribution`",
        "on TensorFlow and torch, `DataParallel` does nothing",
    ),
    Row(
        "keras.distribution",
        "set_distribution distribution",
        "distribution._keras_api",
        "the same, under the public names",
        "on TensorFlow and torch, `DataParallel` does nothing",
    ),
    Row(
        "keras.src.distribution.distribution_lib.Distribution",
        "scope",
        "distribution._keras_api",
        "go back to the distribution before",
        "the distribution stays after its scope",
    ),
    Row(
        "tensorflow.data.Dataset",
        "__iter__",
        "data._looks",
        "count how often a script looks at its data before it trains",
        "data that are shuffled anew have another order than in one process",
        _TENSORFLOW,
    ),
    Row(
        "keras.src.backend.torch.trainer.TorchEpochIterator",
        "_get_iterator",
        "distribution._orders",
        "draw what a loader of torch draws at its start on all ranks alike",
        "an unchanged script has its rows in another order on more ranks",
    ),
    Row(
        "keras.Model",
        "save save_weights export",
        "distribution._files",
        "save on one rank, while the others wait",
        "all ranks of an unchanged script write the same file",
    ),
    Row(
        "keras.*",
        "save_model save_weights",
        "distribution._files",
        "the same, for the functions of `keras.saving`",
        "all ranks of an unchanged script write the same file",
    ),
    Row(
        "keras.*",
        "get_file",
        "distribution._files",
        "download once on each host",
        "a rank reads a file that another one is still writing",
    ),
    Row(
        "os",
        "mkdir rmdir",
        "distribution._folders",
        "take a folder that another rank has just made, or removed",
        "of the ranks that make a folder, all but one raise FileExistsError",
        "Python 3.10 to 3.14",
    ),
    *(
        Row(
            owner,
            names,
            "distribution._own_files",
            "write, remove, move or link a file on one rank of a host",
            "an unchanged script appends to a file N times, and fails where "
            "another rank has removed it",
            "Python 3.10 to 3.14",
        )
        for owner, names in (
            ("builtins", "open"),
            ("io", "open"),
            ("os", "remove unlink rename replace symlink link"),
            ("shutil", "rmtree move"),
        )
    ),
    Row(
        "os",
        "stat",
        "distribution._turns",
        "look for a file when no rank before this one makes it",
        "a rank of an unchanged script reads what another one has half made",
        "Python 3.10 to 3.14",
    ),
    *(
        Row(
            owner,
            names,
            "distribution._turns",
            "wait until no rank before this one makes files",
            "two ranks of an unchanged script write the same file at once",
            f"{_TENSORFLOW}; h5py 3.14",
        )
        for owner, names in (*WRITE_FILES.items(), *LOOK_FOR_FILES.items())
    ),
    Row(
        "keras.src.backend.random",
        "normal uniform truncated_normal randint categorical gamma binomial "
        "beta shuffle dropout",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
    ),
    Row(
        "numpy.random",
        "binomial choice normal permutation rand randint randn random "
        "shuffle standard_normal uniform",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
        "NumPy 1.26 to 2.4",
    ),
    Row(
        "tensorflow.random",
        "normal uniform truncated_normal categorical shuffle gamma "
        "stateless_normal stateless_uniform stateless_truncated_normal",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.random.Generator",
        "normal uniform truncated_normal",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
        _TENSORFLOW,
    ),
    Row(
        "jax.random",
        "normal uniform truncated_normal randint categorical bernoulli "
        "permutation gumbel",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
        "JAX 0.7 to 0.12",
    ),
    Row(
        "torch",
        "bernoulli multinomial normal rand rand_like randint randint_like "
        "randn randn_like randperm",
        "distribution._draws",
        "know that a step of an unchanged script draws random numbers",
        "nobody hears why N ranks end otherwise than one process",
        "torch 2.6 to 2.11",
    ),
    Row(
        "builtins",
        "input",
        "distribution._scripts",
        "say where a line of standard input is missing that rank 0 has",
        "a rank of an unchanged script ends by EOFError, which names nothing",
        "Python 3.10 to 3.14",
    ),
    Row(
        "numpy.random.bit_generator",
        "randbits",
        "distribution._scripts",
        "let generators without a seed begin alike on all ranks",
        "ranks of an unchanged script make different data",
        "NumPy 1.26 to 2.4",
    ),
    Row(
        "keras.Model",
        "fit evaluate predict",
        "_keras.calls",
        "know which call runs, with which model and data",
        "callbacks and shares of data do not know whose steps run",
    ),
    Row(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "__init__",
        "_keras.epochs",
        "know the data of a call",
        "ranks do not compare their data; positions are lost",
    ),
    Row(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_enumerate_iterator",
        "_keras.epochs",
        "tell Keras how many steps an epoch has",
        "progress bars and schedules count the steps of the epoch before",
    ),
    Row(
        "keras.callbacks.CallbackList",
        "on_train_begin on_test_begin",
        "_keras.callback_lists",
        "act after the callbacks when training or a test begins",
        "models that differ between ranks train without a word",
    ),
    Row(
        "keras.Model",
        "save save_weights",
        "_keras.writers",
        "replace a file as a whole",
        "a reader finds a file that ranks are writing at once",
    ),
    Row(
        "keras.Model",
        "compute_loss",
        "_keras.losses",
        "know the batch of a loss",
        "ranks with fewer rows count as much as the others",
    ),
    Row(
        "keras.Model",
        "_compute_loss",
        "_keras.losses",
        "give a loss the weight of this rank's rows, whoever computes it",
        "ranks with fewer rows count as much as the others",
    ),
    Row(
        "keras.Model",
        "_aggregate_additional_loss",
        "_keras.losses",
        "sum what `add_loss` gets as a vector over the rows of all ranks",
        "a vector in `add_loss` counts 1/N",
    ),
    Row(
        "keras.src.losses.loss",
        "reduce_weighted_values",
        "_keras.losses",
        "divide a loss by what one process would divide it by",
        "ranks with fewer rows count as much as the others",
    ),
    Row(
        "keras.losses.Loss",
        "__call__",
        "distribution._row_checks",
        "know with what the script's losses are called",
        "losses that are no means over rows are not told",
    ),
    Row(
        "keras.metrics.Mean",
        "update_state",
        "_keras.losses",
        "weigh a batch in the tracked loss",
        "the reported loss is not that of one process",
    ),
    Row(
        "keras.metrics.MeanMetricWrapper",
        "update_state",
        "_keras.metric_functions",
        "know metric functions that return one value for a batch",
        "their means over ranks are reported without a word",
    ),
    Row(
        "keras.src.trainers.compile_utils.CompileMetrics",
        "update_state",
        "_keras.losses",
        "leave rows that only fill a batch out of metrics",
        "such rows count in metrics",
    ),
    Row(
        "keras.Model",
        "train_step test_step",
        "_keras.steps",
        "know which rows only fill a batch",
        "rows that only fill a batch count in losses and metrics",
    ),
    Row(
        "keras.src.random.seed_generator",
        "global_seed_generator",
        "_keras.random_streams",
        "let each rank draw its own numbers in the threads that read data",
        "ranks change their data by the same random numbers",
    ),
    Row(
        "keras.optimizers.LossScaleOptimizer",
        "check_finite",
        "_keras.patches",
        "skip a step on all ranks or on none",
        "ranks get out of step in mixed precision",
    ),
    Row(
        "keras.optimizers.Optimizer",
        "apply",
        "_keras.training_calls",
        "know that a loop of one's own trains",
        "ranks that train alone end without a word",
    ),
    *(
        Row(
            owner,
            names,
            "_common.training_calls",
            "know that a loop computes gradients, and may train by hand",
            "ranks that train alone end without a word",
            seen,
        )
        for owner, names, seen in (
            ("tensorflow.GradientTape", "gradient", _TENSORFLOW),
            ("jax", "grad value_and_grad", "JAX 0.7 to 0.12"),
            ("torch.autograd", "backward", "torch 2.6 to 2.11"),
        )
    ),
    Row(
        "tensorflow.nn",
        "compute_average_loss",
        "data._own_loops",
        "know by what a loop divides its loss",
        "a loop that divides by the ranks twice trains too slowly in silence",
        _TENSORFLOW,
    ),
    *(
        Row(
            owner,
            "__iter__",
            "_values.whole_loops",
            "know what a loop trains on",
            "ranks that train on all rows in other orders end without a word",
            seen,
        )
        for owner, seen in (
            ("tensorflow.data.Dataset", _TENSORFLOW),
            ("torch.utils.data.DataLoader", "torch 2.6 to 2.11"),
        )
    ),
    *(
        Row(
            owner,
            name,
            home,
            "look at trained weights before something else sets them",
            "weights that one rank loads at its end are told to differ",
            seen,
        )
        for owner, name, home, seen in (
            (
                "keras.src.backend.common.variables.Variable",
                "assign",
                "_keras.training_calls",
                _KERAS,
            ),
            (
                "torch.nn.Module",
                "load_state_dict",
                "_common.training_calls",
                "torch 2.6 to 2.11",
            ),
        )
    ),
    Row(
        "optax",
        "apply_updates",
        "_common.training_calls",
        "know that a loop of JAX trains",
        "ranks that train alone end without a word",
        "optax 0.2",
    ),
    Row(
        "keras.Model",
        "_resolve_auto_jit_compile",
        "_keras.patches",
        "keep XLA off where it cannot run collectives",
        'training with `jit_compile="auto"` fails to compile',
    ),
    Row(
        "keras.layers.BatchNormalization",
        "_moments",
        "_keras.normalization",
        "normalize with the batches of all ranks if `synchronized=True`",
        "each rank normalizes with its own batch",
    ),
    Row(
        "keras.layers.BatchNormalization",
        "__init__",
        "_keras.normalization",
        "accept `synchronized=True` on JAX and torch",
        "Keras refuses such layers there",
    ),
    Row(
        "keras.src.saving.serialization_lib",
        "serialize_keras_object deserialize_keras_object",
        "_keras.saved_forms",
        "save objects of ours as Keras's own, too",
        "models with a `SyncBatchNormalization` load with hvd_keras alone",
    ),
    Row(
        "keras.Model",
        "make_train_function",
        "_keras.jax",
        "keep the weights when a step fails (JAX)",
        "an elastic job has lost its weights when another rank dies",
    ),
    Row(
        "keras.Model",
        "_initialize_ddp make_train_function make_test_function "
        "make_predict_function",
        "_keras.torch",
        "keep Keras from averaging over the ranks as well (torch)",
        "gradients are averaged twice in a job of `torch.distributed`",
        "Keras 3.16",
    ),
    Row(
        "keras.Model",
        "get_metrics_result",
        "_keras.torch",
        "sum metrics over the ranks only once (torch)",
        "metrics are summed twice in a job of `torch.distributed`",
        "Keras 3.16",
    ),
    Row(
        "keras.Model",
        "compile",
        "_keras.strategy",
        "distribute the optimizer of a model of `HvdStrategy`",
        "gradients are summed after they were clipped",
    ),
    Row(
        "keras.Model",
        "save save_weights",
        "_keras.strategy",
        "let one rank write a model of `HvdStrategy`",
        "all ranks write the same file",
    ),
    Row(
        "keras.Model",
        "_get_metrics_result_or_logs",
        "_keras.strategy",
        "sum the metrics of a model of `HvdStrategy`",
        "each rank reports its own metrics",
    ),
    Row(
        "keras.src.backend.tensorflow.trainer",
        "reduce_per_replica",
        "_keras.strategy",
        "give all ranks the predictions of a model of `HvdStrategy`",
        "`predict` returns this rank's rows",
    ),
    Row(
        "keras.Model",
        "compile",
        "compat.keras2",
        "take arguments of Keras 2 (`--horovod-compat`)",
        "programs for Horovod fail in `compile`",
    ),
    Row(
        "keras.optimizers.Optimizer",
        "lr variables",
        "compat.keras2",
        "have what Keras 2 had (`--horovod-compat`)",
        "programs for Horovod fail with AttributeError or TypeError",
    ),
    Row(
        "keras.backend",
        "get_value set_value",
        "compat.keras2",
        "have what Keras 2 had (`--horovod-compat`)",
        "callbacks written for Horovod fail with AttributeError",
    ),
    Row(
        "tensorflow.keras.backend",
        "set_value",
        "compat.keras2",
        "set variables of Keras 3 (`--horovod-compat`)",
        "callbacks written for Horovod fail with AttributeError",
    ),
    Row(
        "tensorflow.GradientTape",
        "gradient",
        "_keras.tensorflow",
        "make the gradient of a vector a sum over the rows of all ranks",
        "a `train_step` with a loss a row gets 1/N of its gradients",
        _TENSORFLOW,
    ),
    Row(
        "jax",
        "grad value_and_grad",
        "_keras.jax",
        "look at what a `train_step` of the user's differentiates",
        "nobody hears of a sum over rows, or of gradients clipped by rank",
        "JAX 0.7 to 0.12",
    ),
    Row(
        "tensorflow.errors.OpError",
        "__new__",
        "ops._errors",
        "raise our errors where TensorFlow raises its own",
        "`except hvd.PeerLostError` does not match in functions and `fit`",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.python.eager.polymorphic_function.function_context",
        "_enclosing_xla_context make_function_context",
        "ops._retracing",
        "trace a function anew for XLA, and after a change of members",
        "XLA meets ops that it does not know; survivors call lost ranks",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.python.ops.script_ops.EagerFunc",
        "__call__",
        "ops._one_thread",
        "know that a `tf.py_function` runs, on one thread",
        "a `tf.function` in a `tf.py_function` hangs on one core",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
        ".Function",
        "_run_functions_eagerly",
        "ops._one_thread",
        "run functions op by op there",
        "a `tf.function` in a `tf.py_function` hangs on one core",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.python.data.ops.structured_function"
        ".StructuredFunctionWrapper",
        "__init__",
        "data._tracing",
        "trace functions behind `hvd.shard` with the rank's own seed, and ours "
        "without optimizing them in each epoch",
        "ranks change their data by the same random numbers",
        _TENSORFLOW,
    ),
    Row(
        "jax._src.effects",
        "remat_allowed_effects",
        "jax._call",
        "add calls through XLA's FFI to what `jax.checkpoint` allows",
        "`jax.checkpoint` refuses functions with collectives",
        "JAX 0.7 to 0.12",
    ),
    # In a process of `hvdrun --verify`, and nowhere else.
    Row(
        "keras.Model",
        "make_train_function fit evaluate predict",
        "_verify.hooks",
        "record the steps of a model and what its calls return",
        "`hvdrun --verify` has nothing to compare",
    ),
    Row(
        "tensorflow",
        "function",
        "_verify.hooks",
        "leave XLA out, whose programs cannot record",
        "`hvdrun --verify` fails in functions with `jit_compile=True`",
        _TENSORFLOW,
    ),
    Row(
        "keras.src.backend.random",
        "normal uniform truncated_normal randint dropout",
        "_verify.frozen",
        "draw the same for each row",
        "`hvdrun --verify` finds that ranks draw other numbers",
    ),
    Row(
        "tensorflow.random",
        "normal uniform truncated_normal",
        "_verify.frozen",
        "draw the same for each row",
        "`hvdrun --verify` finds that ranks draw other numbers",
        _TENSORFLOW,
    ),
    Row(
        "tensorflow.python.framework.random_seed",
        "get_seed",
        "_verify.start",
        "seed what draws without a seed, on each rank otherwise",
        "rank 0 and the one process draw other numbers",
        _TENSORFLOW,
    ),
    Row(
        "numpy.random",
        "binomial choice exponential normal permutation poisson rand randint "
        "randn random random_sample shuffle standard_normal uniform",
        "_verify.draws",
        "know what the rows of a step get",
        "`hvdrun --verify` does not see that ranks draw the same numbers",
        "NumPy 1.26 to 2.4",
    ),
    Row(
        "torch",
        "bernoulli multinomial normal rand rand_like randint randint_like "
        "randn randn_like randperm",
        "_verify.draws",
        "know what the rows of a step get",
        "`hvdrun --verify` does not see that ranks draw the same numbers",
        "torch 2.6 to 2.11",
    ),
    *(
        Row(
            owner,
            names,
            "_common.kept_files",
            "keep the file that the library overwrites",
            "`hvdrun --verify` leaves the file that its script has written",
            f"{_TENSORFLOW}; h5py 3.14; torch 2.6 to 2.11",
        )
        for owner, names in (*WRITE_FILES.items(), ("keras.Model", "export"))
    ),
    Row(
        "keras.layers.BatchNormalization",
        "_moments",
        "_verify.frozen",
        "take the statistics of the whole batch",
        "`hvdrun --verify` finds that ranks take their own",
    ),
)
