"""`hvdrun --distribute` tells of what takes no row of a batch by itself."""

from __future__ import annotations

import re

import distribute_table
import jobs
import pytest
from selection import thorough_except

PROGRAM = """
import keras, numpy as np
from keras import ops

x = np.random.default_rng(1).uniform(size=(48, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)

def root(y, predicted):
    return ops.sqrt(ops.mean(ops.square(y - predicted)))

def mean(y, predicted):
    return ops.mean(ops.square(y - predicted))

def total(y, predicted):
    return ops.sum(ops.square(y - predicted))

def dice(y, predicted):
    return 1 - ops.sum(y * predicted) / ops.sum(y + ops.square(predicted))

def balanced(y, predicted):
    positive = ops.mean(ops.cast(y > 0.5, "float32"))
    weight = ops.where(y > 0.5, 1.0 - positive, positive)
    return weight * ops.square(y - predicted)

class OfMedians(keras.losses.Loss):
    def call(self, y, predicted):
        return ops.median(ops.abs(y - predicted))

class OfRows(keras.losses.Loss):
    def call(self, y, predicted):
        return ops.square(y - predicted)

class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="own")
        self.value = self.add_variable((), "zeros")
    def update_state(self, y, predicted, sample_weight=None):
        gap = ops.max(ops.abs(y - predicted))
        self.value.assign(ops.maximum(self.value, gap))
    def result(self):
        return self.value + 0.0

class Moving(Largest):
    def update_state(self, y, predicted, sample_weight=None):
        gap = ops.mean(ops.abs(y - predicted))
        self.value.assign(0.9 * self.value + 0.1 * gap)

class Added(Largest):
    def update_state(self, y, predicted, sample_weight=None):
        self.value.assign(self.value + ops.sum(ops.abs(y - predicted)))

class Centered(keras.layers.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0)

class Scaled(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:])
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x * self.factor

class Sparse(keras.layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.square(ops.mean(x, axis=0) - 0.5)))
        return x

class Noisy(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
    def call(self, x):
        return x + 0.1 * keras.random.normal(ops.shape(x), seed=self.seeds)

def functional(layer):
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4)(inputs)
    outputs = keras.layers.Dense(1)(layer(hidden))
    return keras.Model(inputs, outputs)

def fit(name, *layers, loss="mse", metrics=(), model=None):
    if model is None:
        first, last = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)
        model = keras.Sequential([first, *layers, last])
    model.compile("sgd", loss, metrics=list(metrics))
    print("fit", name, flush=True)
    for _ in range(2):
        model.fit(x, y, batch_size=16, verbose=0, shuffle=False)

for function in root, dice, balanced, OfMedians(), total, mean, OfRows():
    fit(getattr(function, "name", "") or function.__name__, loss=function)
for kind in Largest, Moving, Added:
    fit(kind.__name__, metrics=[kind()])
for layer in Centered(), Scaled(), Sparse(), Noisy():
    fit(type(layer).__name__, layer)
fit("op", model=functional(lambda x: x - ops.mean(x, axis=0)))
fit("op_of_rows", model=functional(ops.tanh))
metric = Largest()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=[metric])
model.fit(x, y, batch_size=16, verbose=0)
value = model.evaluate(x, y, verbose=0, return_dict=True)["own"]
largest = np.max(np.abs(y - model.predict(x, verbose=0)))
print("value", value / largest)
"""
TOLD = re.compile(r"WARNING hvd_keras rank 0: (.*)")


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "tensorflow", "torch")
)
def test_what_mixes_rows_is_told(backend: str) -> None:
    job = jobs.run_python(
        2,
        PROGRAM,
        "--distribute",
        seconds=180,
        KERAS_BACKEND=backend,
    )
    assert job.status == 0, job.stderr
    told = "\n".join(TOLD.findall(job.stderr))
    for name in ("root", "dice", "of_medians"):
        assert re.search(rf"no mean over them.*Received: {name}", told), told
    assert "Received: the loss 'balanced'" in told
    for name in ("Largest", "Moving"):
        assert re.search(rf"no sum over rows.*'own' \({name}\)", told), told
    for name in ("Centered", "Sparse", "Mean, Subtract"):
        assert re.search(rf"other rows of its batch.*, with {name} ", told), (
            told
        )
    assert "adds up the rows of a rank" in told
    assert len(told.splitlines()) == 11, told  # Largest of two models
    # The mean of two maxima is at most that of all; their sum is more.
    (share,) = re.findall(r"^value (.*)", job.stdout, re.M)
    assert 0.5 < float(share) <= 1.0 + 1e-5


BY_HAND = """
import keras, numpy as np, tensorflow as tf

class ByHand(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(1)
    def call(self, x):
        return self.last(x)
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x)) ** 2)
        weights = self.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign(weight - 0.01 * gradient)
        return {"loss": loss}

class InVariables(ByHand):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x)) ** 2)
        weights = self.trainable_variables
        for kept, gradient in zip(self.kept, tape.gradient(loss, weights)):
            kept.assign(gradient)
        self.optimizer.apply_gradients(zip(self.kept, weights))
        return {"loss": loss}

x = np.arange(12.0)[:, np.newaxis]
model = InVariables()
model(x)
weights = model.trainable_variables
model.kept = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in weights]
model.compile("sgd")
model.fit(x, x, batch_size=6, verbose=0)
print("gradients were variables", flush=True)
model = ByHand()
model.compile()
model.fit(x, x, batch_size=6, verbose=0)
"""


def test_weights_that_no_optimizer_trains_must_be_equal() -> None:
    job = jobs.run_python(2, BY_HAND, "--distribute")
    assert job.status == 1
    assert "gradients were variables" in job.stdout, job.stderr
    assert "must have equal weights after each epoch" in job.stderr
    assert "Update weights by the model's own optimizer" in job.stderr
    assert "MetricAverageCallback" not in job.stderr


OF_TORCH = """
import keras, numpy as np, torch
import hvd_keras.torch

def fit(normalization):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), normalization)
    wrapped = keras.layers.TorchModuleWrapper(module)
    model = keras.Sequential([wrapped, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)

fit(torch.nn.BatchNorm1d(2))
fit(hvd_keras.torch.SyncBatchNorm(2))
"""


def test_modules_of_torch_that_normalize_are_told() -> None:
    job = jobs.run_python(2, OF_TORCH, "--distribute", KERAS_BACKEND="torch")
    assert job.status == 0, job.stderr
    (told,) = TOLD.findall(job.stderr)
    assert "normalizes by the rows of each rank alone" in told
    assert "with BatchNorm1d in `fit`" in told


OWN_STEPS = """
import sys
import keras, numpy as np
from keras import ops

backend = keras.backend.backend()
x = np.random.default_rng(1).uniform(size=(48, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)

class Own(keras.Model):
    def __init__(self, loss, log=None, layer=None):
        super().__init__()
        layers = [keras.layers.Dense(4, "tanh"), layer, keras.layers.Dense(1)]
        self.net = keras.Sequential([each for each in layers if each])
        self.own_loss, self.log, self.steps = loss, log, 0
        self.counts = []
    def call(self, x, training=False):
        return self.net(x, training=training)

if backend == "tensorflow":
    import tensorflow as tf
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(y, self(x, training=True))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        return {"loss": loss, **self.logged(y, self(x))}
    decorated = tf.function(train_step)
elif backend == "torch":
    import torch
    def train_step(self, data):
        x, y = data
        self.steps += 1
        self.counts = self.counts or [torch.zeros(())]
        self.counts[0] += 1
        self.zero_grad()
        loss = self.own_loss(y, self(x, training=True))
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in weights], weights)
        return {"loss": loss, **self.logged(y, self(x))}
    decorated = train_step
else:
    import jax
    def train_step(self, state, data):
        trained, others, slots, metrics = state
        x, y = data
        def compute(trained, others):
            predicted, others = self.stateless_call(
                trained, others, x, training=True)
            return self.own_loss(y, predicted), (predicted, others)
        differentiate = jax.value_and_grad(compute, has_aux=True)
        (loss, (predicted, others)), gradients = differentiate(trained, others)
        trained, slots = self.optimizer.stateless_apply(
            slots, gradients, trained)
        logs = {"loss": loss, **self.logged(y, predicted)}
        return logs, (trained, others, slots, metrics)
    decorated = train_step

def logged(self, y, predicted):
    return {} if self.log is None else {"own": self.log(y - predicted)}

Own.train_step, Own.logged = train_step, logged

class Decorated(Own):
    train_step = decorated

class ByMethod(keras.Model):
    def __init__(self, loss):
        super().__init__()
        self.net, self.own_loss = keras.layers.Dense(1), loss
    def call(self, x):
        return self.net(x)
    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kw):
        return self.own_loss(y, y_pred)

def mean(y, predicted):
    return ops.mean(ops.square(y - predicted))

def mean_by_hand(y, predicted):
    rows = ops.cast(ops.shape(y)[0], "float32")
    return ops.sum(ops.square(y - predicted)) / rows

def root(y, predicted):
    return ops.sqrt(mean(y, predicted))

def of_eight(y, predicted):
    return mean(ops.reshape(y, (8, 1)), predicted)

def by_constant(y, predicted):
    return ops.sum(ops.square(y - predicted)) / 16

def largest(y, predicted):
    return ops.max(ops.square(y - predicted))

def balanced(y, predicted):
    positive = ops.mean(ops.cast(y > 0.95, "float32"))
    return ops.mean((1.0 - positive) * ops.square(y - predicted))

def of_teacher(y, predicted):
    return mean(ops.matmul(predicted, ops.ones((1, 8)) / 8), predicted)

def of_neighbours(y, predicted):
    return mean(ops.roll(y, 1, axis=0), predicted)

def fit(name, model):
    model.compile(keras.optimizers.Adam(0.01))
    print("fit", name, file=sys.stderr, flush=True)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    if backend == "torch" and isinstance(model, Own):
        assert model.steps == model.counts[0] == 6  # a trial counts no step

for loss in mean, mean_by_hand, root, by_constant, largest, of_neighbours:
    fit(loss.__name__, Own(loss))
for loss in balanced, of_teacher:
    fit(loss.__name__, Own(loss))
fit("decorated", Decorated(root))
fit("dropout", Own(mean, layer=keras.layers.Dropout(0.5)))
fit("normalized", Own(mean, layer=keras.layers.BatchNormalization()))
fit("log", Own(mean, log=lambda gap: ops.mean(ops.abs(gap))))
fit("norm", Own(mean, log=lambda gap: ops.sqrt(ops.sum(gap * gap))))
fit("nested", Own(root, log=lambda gap: {"of": ops.mean(ops.abs(gap))}))
fit("method", ByMethod(mean))
fit("fixed", Own(of_eight))
fit("method_root", ByMethod(root))
"""
BAD_STEPS = [
    *("root", "by_constant", "largest", "of_neighbours", "method_root"),
    *("nested", "balanced"),
]


@pytest.mark.parametrize(
    "backend", thorough_except(distribute_table.BACKENDS, "tensorflow", "torch")
)
def test_steps_of_the_script_are_tried(backend: str) -> None:
    job = jobs.run_python(
        2,
        OWN_STEPS,
        "--distribute",
        seconds=180,
        KERAS_BACKEND=backend,
    )
    assert job.status == 0, job.stderr
    told: dict[str, str] = {}
    for line in job.stderr.splitlines():
        if line.startswith("fit "):
            name = line.split()[1]
            told[name] = ""
        elif found := re.match(r".*WARNING hvd_keras rank 0: (.*)", line):
            told[name] += found[1]
    bad = [*BAD_STEPS, "decorated"]
    for name in bad:
        assert "than one process" in told.pop(name), (name, job.stderr)
    assert "no means over rows" in told["norm"]
    assert "Received: 'own' in" in told.pop("norm")
    assert not "".join(told.values()), told
    (untried,) = re.findall(
        r"INFO .*`train_step` of (\w+) takes no", job.stderr
    )
    assert untried == "Own"  # of eight rows


def test_a_step_that_is_tried_can_be_verified() -> None:
    first, _ = OWN_STEPS.split("for loss in mean,")
    code = f'{first}fit("mean", Own(mean))\n'
    job = jobs.run_python(2, code, "--verify", "--distribute", seconds=180)
    assert job.status == 0, job.stderr


FAILED_FIRST = """
class FailsOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise OSError("the disk is full")

model = Own(total)
model.compile(keras.optimizers.Adam(0.01))
for callbacks in [FailsOnce()], []:
    try:
        model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
    except OSError:
        print("fails", flush=True)
"""


def test_what_a_fit_that_failed_has_traced_is_told() -> None:
    first, _ = OWN_STEPS.split("for loss in mean,")
    loss = (
        "def total(y, predicted):\n    return ops.sum((y - predicted) ** 2)\n"
    )
    job = jobs.run_python(
        2, first + loss + FAILED_FIRST, "--distribute", seconds=180
    )
    assert job.status == 0, job.stderr
    assert "fails" in job.stdout
    (told,) = TOLD.findall(job.stderr)
    assert told.startswith("A loss adds up the rows of a rank")
