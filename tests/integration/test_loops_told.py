"""Hvdrun's last lines say what differs by rank in loops of one's own."""

from __future__ import annotations

import re

import jobs
import pytest

_LOOP_OVER = """
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
rows = tf.data.Dataset.from_tensor_slices(tf.range(24.0) ** 2)
whole = rows.batch(4)  # to validate with
rows = rows.{stage}
weight = tf.Variable([1.0])
for epoch in range(2):
    for number, batch in enumerate(rows):
        if number == {last}:
            break
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(weight * batch)
        weight.assign(weight - 1e-3 * tape.gradient(loss, weight))
    for batch in whole:
        loss = tf.reduce_mean(weight * batch)
"""
_SHUFFLED = "shuffle(24, seed=hvd.rank()).batch(4)"
_LOADER = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import hvd_keras.torch as hvd
hvd.init()
torch.manual_seed(1)
layer = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters())
torch.manual_seed(hvd.rank())
data = TensorDataset(torch.arange(24.0)[:, None])
sampler = {sampler}
loader = DataLoader(data, 4, sampler=sampler, shuffle=sampler is None)
for epoch in range(2):
    for (batch,) in loader:
        optimizer.zero_grad()
        layer(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        (_LOOP_OVER.format(stage=_SHUFFLED, last=-1), True),
        (_LOOP_OVER.format(stage=_SHUFFLED, last=3), False),
        (
            _LOOP_OVER.format(
                stage="shard(hvd.size(), hvd.rank()).batch(4)", last=-1
            ),
            False,
        ),
        (
            _LOOP_OVER.format(stage="skip(0)", last=-1).replace(
                "for epoch", "rows = hvd.shard(rows, batch_size=2)\nfor epoch"
            ),
            False,
        ),
        (_LOADER.format(sampler="None"), True),
        (
            _LOADER.format(sampler="DistributedSampler(data, 2, hvd.rank())"),
            False,
        ),
    ],
    ids=["dataset", "part", "shard", "validation", "loader", "sampler"],
)
def test_loops_over_all_rows(code: str, is_told: bool) -> None:
    words = jobs.words_of_two(code)
    assert len(words) == is_told, words
    if is_told:
        assert "Each rank has trained on all rows" in words[0]
        assert "6 batches of the same data on all ranks" in words[0]


_OVER_SHARE = """
import random
import numpy as np
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
random.seed({seed})

def rows():
    order = list(range(24))
    random.shuffle(order)
    for number in order:
        yield np.float32([number])

data = tf.data.Dataset.from_generator(
    rows, output_signature=tf.TensorSpec((1,))
)
weight = tf.Variable([1.0])
share = hvd.shard(data, global_batch_size=4)
{before}
for epoch in range(2):
    for batch in share:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(weight * batch)
        weight.assign(weight - 1e-3 * tape.gradient(loss, weight))
"""
_LOOKS = "if hvd.rank() == 0: print(next(iter(share)))"


@pytest.mark.parametrize(
    ("seed", "before", "is_told"),
    [
        ("hvd.rank()", "", True),
        ("1", "", False),
        ("1", "next(iter(share))", False),
        ("1", _LOOKS, True),  # the generator draws another order each time
    ],
    ids=["own seeds", "one seed", "all look", "one looks"],
)
def test_loops_over_rows_in_other_orders(
    seed: str, before: str, is_told: bool
) -> None:
    code = _OVER_SHARE.format(seed=seed, before=before)
    words = jobs.words_of_two(code)
    assert len(words) == is_told, words
    for text in words:
        assert "all rows to `hvd.shard`, in the same order" in text
        assert re.search(
            r"differ: [\d, .]+ on rank 0, [\d, .]+ on rank 1", text
        )


_SUMS_BY_HAND = """
import torch
import hvd_keras.torch as hvd
hvd.init()
torch.manual_seed(1)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
hvd.broadcast_parameters(layer.state_dict(), 0)
torch.manual_seed(hvd.rank())
for step in range(3):
    optimizer.zero_grad()
    layer(torch.rand(4, 4)).sum().backward()
    for parameter in layer.parameters():
        {sums}
    optimizer.step()
"""
_DIVIDED = """
import keras
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
weight = tf.Variable([1.0])
for batch in hvd.shard(tf.data.Dataset.range(22), global_batch_size=4):
    with hvd.DistributedGradientTape(tf.GradientTape(){op}) as tape:
        losses = weight * tf.cast(batch, tf.float32)
        loss = tf.nn.compute_average_loss(losses, global_batch_size={size})
    weight.assign(weight - 1e-3 * tape.gradient(loss, weight))
"""


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (_SUMS_BY_HAND.format(sums="hvd.allreduce(parameter.grad)"), "weights"),
        (_SUMS_BY_HAND.format(sums="hvd.allreduce_(parameter.grad)"), ""),
        (_DIVIDED.format(op="", size=4), "divided by the rows of all ranks"),
        (_DIVIDED.format(op="", size=2), ""),
        (_DIVIDED.format(op=", op=hvd.Sum", size=4), ""),
    ],
    ids=["lost", "in place", "all rows", "own rows", "sum"],
)
def test_gradients_that_are_summed_otherwise(code: str, text: str) -> None:
    words = jobs.words_of_two(code)
    assert len(words) == bool(text), words
    assert all(text in each for each in words)


_SPLIT = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.data import random_split
import hvd_keras.torch as hvd
hvd.init()
data = TensorDataset(torch.arange(24.0)[:, None])
{split}
layer = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters())
hvd.broadcast_parameters(layer.state_dict(), 0)
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
for (batch,) in DataLoader(data, 4, sampler=sampler):
    optimizer.zero_grad()
    layer(batch).sum().backward()
    optimizer.step()
"""
_DRAWN = "data, _ = random_split(data, [16, 8]{})"
_OWN = "data = TensorDataset(data.tensors[0][hvd.rank()::hvd.size()])"


@pytest.mark.parametrize(
    ("split", "is_told"),
    [
        (_DRAWN.format(""), True),
        (_DRAWN.format(", torch.Generator().manual_seed(1)"), False),
        (_OWN, True),
        ("", False),
    ],
    ids=["no seed", "seed", "own rows", "all rows"],
)
def test_data_that_torch_deals_out(split: str, is_told: bool) -> None:
    words = jobs.words_of_two(_SPLIT.format(split=split))
    assert len(words) == is_told, words
    assert all("must deal out the same dataset" in text for text in words)


_HALF_WRAPPED = """
import keras
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
keras.utils.set_random_seed(1)
first, second = keras.layers.Dense(4), keras.layers.Dense(1)
rows = tf.random.normal((8, 3), seed=hvd.rank())
second(first(rows))
optimizers = [
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
    {second},
]
for step in range(3):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((second(first(rows)) - 1.0) ** 2)
    for layer, optimizer in zip((first, second), optimizers):
        gradients = tape.gradient(loss, layer.trainable_weights)
        optimizer.apply(gradients, layer.trainable_weights)
if hvd.rank() == 0 and {loads}:
    second.set_weights([weight * 2.0 for weight in second.get_weights()])
"""
_WRAPPED = "hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))"
_RATES_OF_TORCH = """
import torch
import hvd_keras.torch as hvd
hvd.init()
torch.manual_seed(1)
layer = torch.nn.Linear(4, 1)
before = {{name: one.clone() for name, one in layer.state_dict().items()}}
rate = {rate}
optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters())
torch.manual_seed(hvd.rank())
for step in range(3):
    optimizer.zero_grad()
    layer(torch.rand(4, 4)).sum().backward()
    optimizer.step()
if hvd.rank() == 0:
    layer.load_state_dict(before)
"""


_BY_HAND = """
import keras
import tensorflow as tf
import hvd_keras as hvd
hvd.init()
keras.utils.set_random_seed({seed})
layer, optimizer = keras.layers.Dense(2), keras.optimizers.SGD(0.1)
rows = tf.random.normal((8, 3), seed=1 + hvd.rank())
layer(rows)
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer(rows) ** 2)
    gradients = tape.gradient(loss, layer.trainable_weights)
    reduced = [{reduced} for gradient in gradients]
    optimizer.apply(reduced, layer.trainable_weights)
    return hvd.allreduce(loss)  # for the log
for _ in range(3):
    step()
"""


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            _BY_HAND.format(
                seed="hvd.rank()", reduced="hvd.allreduce(gradient)"
            ),
            "SGD has trained",
        ),
        (_BY_HAND.format(seed=1, reduced="hvd.allreduce(gradient)"), ""),
        (
            _HALF_WRAPPED.format(
                second="keras.optimizers.Adam(0.01)", loads=False
            ),
            "SGD, Adam has trained",
        ),
        (_HALF_WRAPPED.format(second=_WRAPPED, loads=False), ""),
        # It may evaluate them alone.
        (_HALF_WRAPPED.format(second=_WRAPPED, loads=True), ""),
        (_RATES_OF_TORCH.format(rate="0.1 * (1 + hvd.rank())"), "SGD has"),
        (_RATES_OF_TORCH.format(rate="0.1"), ""),
    ],
    ids=[
        "by hand",
        "same seed",
        "half",
        "both",
        "loads",
        "rates of torch",
        "loads in torch",
    ],
)
def test_other_weights_at_the_end(code: str, what: str) -> None:
    words = jobs.words_of_two(code)
    assert len(words) == bool(what), words
    if what:
        assert "have ended with different weights" in words[0]
        assert what in words[0]
        assert re.search(
            r"one is [-\d.e]+ on rank 0, [-\d.e]+ on rank 1", words[0]
        )
