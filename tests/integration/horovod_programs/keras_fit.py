"""A program for Horovod 0.28: `fit` with its callbacks."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

rng = np.random.RandomState(0)
x = rng.rand(256, 8).astype("float32")
y = (x.sum(axis=1) > 4).astype("int64")
x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(100)
dataset = dataset.batch(16)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(2, activation="softmax"),
    ]
)
scaled_lr = 0.01 * hvd.size()
opt = hvd.DistributedOptimizer(
    tf.optimizers.Adam(scaled_lr),
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=scaled_lr, warmup_epochs=2, verbose=1
    ),
    hvd.callbacks.LearningRateScheduleCallback(scaled_lr, 0.5, 2, None),
]
checkpoint = sys.argv[1] + "/checkpoint-{epoch}.keras"
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(checkpoint))
history = model.fit(
    dataset,
    steps_per_epoch=16 // hvd.size(),
    callbacks=callbacks,
    epochs=4,
    verbose=1 if hvd.rank() == 0 else 0,
)
assert history.history["lr"][-1] < history.history["lr"][1]
weights = np.concatenate([w.ravel() for w in model.get_weights()])
total = hvd.allreduce(weights, name="weights", average=True)
np.testing.assert_allclose(total, weights, rtol=1e-6)
rows = hvd.allgather(np.array([[hvd.rank()]]), name="ranks")
assert rows.numpy().ravel().tolist() == list(range(hvd.size()))
epoch = hvd.broadcast(4 if hvd.rank() == 0 else 0, 0, name="resume_from_epoch")
hvd.allreduce([0.0], "barrier")
loaded = hvd.load_model(checkpoint.format(epoch=int(epoch)))
np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
loaded.fit(dataset, steps_per_epoch=2, epochs=1, verbose=0)
print("loss fell:", history.history["loss"][-1] < history.history["loss"][0])
