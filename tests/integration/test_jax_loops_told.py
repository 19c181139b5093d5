"""Hvdrun's last lines say what differs by rank in loops of JAX."""

from __future__ import annotations

import jobs
import pytest

_JAX = """
import jax
import jax.numpy as jnp
import numpy as np
import hvd_keras as hvd
import hvd_keras.jax
hvd.init()
allreduce = hvd_keras.jax.allreduce
key = jax.random.PRNGKey({seed})
params = dict(b=jnp.zeros(2), w=jax.random.normal(key, (3, 2)))
x = np.arange(24.0).reshape(8, 3)[hvd.rank() :: 2] / 24
def step(params, x):
    def loss(params):
        return jnp.mean((x @ params["w"] + params["b"]) ** 2)
    gradients = jax.grad(loss)(params)
    {gradients}
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    {params}
    return params
step = {step}
for number in range(4):
    params = step(params, x)
    {then}
"""
_ALL = "gradients = allreduce(gradients)"


@pytest.mark.parametrize(
    ("parts", "is_told"),
    [
        ({"gradients": _ALL}, True),
        ({"gradients": _ALL, "step": "step"}, True),
        ({"gradients": "gradients = jax.tree.map(allreduce, gradients)"}, True),
        (
            {
                "gradients": "gradients = jax.tree.map("
                "lambda g: allreduce(jnp.clip(g, -1, 1)), gradients)"
            },
            True,
        ),
        ({"gradients": _ALL, "seed": "0"}, False),
        (
            {
                "gradients": _ALL,
                "then": "if number == 0: "
                "params = hvd_keras.jax.broadcast_pytree(params)",
            },
            False,
        ),
        ({"params": "params = allreduce(params)"}, False),
        ({"then": "params = allreduce(params)"}, False),
    ],
    ids="jit eager leaves clipped seed late averaged local".split(),
)
def test_jax_loops_that_begin_apart(
    parts: dict[str, str], is_told: bool
) -> None:
    pytest.importorskip("jax")
    usual = {"seed": "hvd.rank()", "step": "jax.jit(step)"}
    empty = dict.fromkeys(("gradients", "params", "then"), "pass")
    words = jobs.words_of_two(_JAX.format(**{**usual, **empty, **parts}))
    assert len(words) == is_told, words
    if is_told:
        assert "they began with other values" in words[0]
        assert "on rank 1" in words[0]


_JAX_OPTIMIZER = """
import jax
import jax.numpy as jnp
import numpy as np
import hvd_keras.jax as hvd
from jax.example_libraries import optimizers
hvd.init()
random = np.random.RandomState({seed})
params = [(random.randn(3, 2), random.randn(2))]  # of float64
x = np.arange(24.0).reshape(8, 3)[hvd.rank() :: 2] / 24
init, update, params_of = optimizers.{optimizer}
def loss(params, x):
    ((w, b),) = params
    return jnp.mean((x @ w + b) ** 2)
@jax.jit
def step(number, state, x):
    gradients = hvd.allreduce(jax.grad(loss)(params_of(state), x))
    return update(number, gradients, state)
state = init(params)
for number in range(4):
    state = step(number, state, x)
"""


@pytest.mark.parametrize(
    ("seed", "optimizer", "is_told"),
    [
        ("hvd.rank()", "sgd(0.1)", True),
        ("hvd.rank()", "momentum(0.1, 0.9)", True),
        ("hvd.rank()", "adam(0.1)", True),
        ("0", "adam(0.1)", False),
    ],
)
def test_states_that_lie_beside_each_parameter(
    seed: str, optimizer: str, is_told: bool
) -> None:
    pytest.importorskip("jax")
    words = jobs.words_of_two(
        _JAX_OPTIMIZER.format(seed=seed, optimizer=optimizer)
    )
    assert len(words) == is_told, words
    if is_told:
        assert "they began with other values" in words[0]


_JITTED = """
import jax
import jax.numpy as jnp
import numpy as np
import hvd_keras as hvd
import hvd_keras.jax
hvd.init()
x = np.arange(3.0 * {rows}).reshape(-1, 3)
def loss(params, x):
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)
gradient_of = jax.jit(jax.grad(loss))
key = jax.random.PRNGKey({seed})
params = dict(b=jnp.zeros(2), w=jax.random.normal(key, (3, 2)))
params = {first}
for batch in hvd.shard(x, global_batch_size=8):
    gradients = gradient_of(params, jnp.asarray(np.asarray(batch)))
    gradients = {gradients}
    params = jax.tree.map(lambda p, g: p - 1e-4 * g, params, gradients)
    params = {then}
"""
_REDUCED = "hvd_keras.jax.allreduce(gradients)"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, "it reduced no gradient"),
        ({"gradients": _REDUCED}, ""),
        (
            {"gradients": _REDUCED, "first": "params", "seed": "hvd.rank()"},
            "they began with other values",
        ),
        (
            {
                "first": "params",
                "seed": "hvd.rank()",
                "then": "hvd_keras.jax.allreduce(params)",
            },
            "",
        ),
        ({"gradients": _REDUCED, "rows": "29"}, "unequal numbers of rows"),
    ],
    ids="alone right seeds averaged uneven".split(),
)
def test_jax_programs_that_give_gradients_to_python(
    parts: dict[str, str], told: str
) -> None:
    pytest.importorskip("jax")
    usual = {"seed": "0", "rows": "32", "gradients": "gradients"}
    usual |= {"first": "hvd_keras.jax.broadcast_pytree(params)"}
    words = jobs.words_of_two(
        _JITTED.format(**{"then": "params", **usual, **parts})
    )
    assert len(words) == bool(told), words
    assert told in " ".join(words)


_LARGE = _JAX.replace("(3, 2)", "(3, 200_000)").replace("zeros(2)", "zeros(1)")


def test_large_parameters_are_told_and_stay_out_of_the_program() -> None:
    pytest.importorskip("jax")
    parts = {"seed": "hvd.rank()", "step": "jax.jit(step, donate_argnums=0)"}
    code = _LARGE.format(**parts, gradients=_ALL, params="pass", then="pass")
    made = "print(len(jax.make_jaxpr(step)(params, x).consts))"
    outcome = jobs.run_python(2, f"{code}\n{made}", KERAS_BACKEND="jax")
    assert outcome.status == 0, outcome.stderr
    assert "they began with other values" in " ".join(jobs.last_words(outcome))
    assert outcome.stdout.count("] 0") == 2, outcome.stdout


_RIGHT = {
    "a job after another": """
allreduce = hvd_keras.jax.allreduce
for number in range(2):
    hvd.init()
    params = dict(b=jnp.zeros(2), w=jnp.ones(3) * (number or hvd.rank()))
    for step in range(2):
        loss = lambda p: sum(map(jnp.sum, p.values())) * (1 + hvd.rank())
        gradients = jax.grad(loss)(params)
        params = jax.tree.map(lambda p, g: p - g, params, allreduce(gradients))
        if number == 0:
            params = hvd_keras.jax.broadcast_pytree(params)
    hvd.shutdown()
""",
    "a mean of losses": """
hvd.init(process_sets=[[0], [1]])
params = dict(b=jnp.float32(hvd.rank()), w=jnp.ones(3))
step = jax.jit(jax.value_and_grad(lambda p: jnp.sum(p["w"]) * p["b"]))
for number in range(4):
    loss, gradients = step(params)
    hvd_keras.jax.allreduce(loss)
""",
    "gradients of data": """
hvd.init()
data = jnp.arange(6.0).reshape(2, 3) * (1 + hvd.rank())
gradients = jax.grad(lambda x: jnp.sum(x**2))(data)
hvd_keras.jax.allreduce(gradients)
""",
    "parameters of a rank": """
hvd.init()
params = dict(own=jnp.ones(3) * hvd.rank(), shared=jnp.ones(4))
@jax.jit
def step(params):
    def loss(params):
        return jnp.sum(params["own"]) * jnp.sum(params["shared"])
    gradients = jax.grad(loss)(params)
    return hvd_keras.jax.allreduce(gradients["shared"])
step(params)
""",
    "forms of arguments": """
hvd.init()
x = jnp.ones(2)
def product(a, b):
    return jnp.sum(a * b)
jax.grad(product, argnums=np.int64(1))(x, x)
jax.grad(product, argnums=[0, 1])(x, x)
jax.grad(fun=lambda a: (jnp.sum(a), 3), has_aux=True)(x)
assert len(hvd_keras.jax.grouped_allreduce(y for y in [x, x])) == 2
""",
}


@pytest.mark.parametrize("code", _RIGHT.values(), ids=_RIGHT)
def test_jax_programs_that_are_right(code: str) -> None:
    pytest.importorskip("jax")
    begin = "import jax, jax.numpy as jnp, numpy as np\n"
    begin += "import hvd_keras as hvd, hvd_keras.jax\n"
    assert not jobs.words_of_two(begin + code)
