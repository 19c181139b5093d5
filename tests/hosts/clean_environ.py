"""The environment in which tests start jobs."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_keras.run.ranks import environment

_TESTS = Path(__file__).parents[1]
# Where the package is: the top of the clone, or what pip has installed.
PACKAGE_PARENT = str(Path(environment.__file__).parents[3])
# JAX compiles for most of the time: these run programs for moments. (JAX 0.10:
# 15 s with all, 34 s with the first alone.)
QUICK_XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_llvm_disable_expensive_passes=true"
)
_PREFIXES = ("HVD_", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "OMP_")


def clean_environ(**extra: str) -> dict[str, str]:
    """Returns the environment without the variables of any job.

    Keras imports scikit-learn if it can, and TensorFlow imports JAX: a third
    of the seconds in which a rank starts. In these jobs they cannot, unless
    JAX is the backend. Those that use them set PYTHONPATH.
    """
    environ = {
        n: v for n, v in os.environ.items() if not n.startswith(_PREFIXES)
    }
    left_out = ["sklearn"]
    if {**environ, **extra}.get("KERAS_BACKEND", "tensorflow") == "jax":
        environ["XLA_FLAGS"] = QUICK_XLA_FLAGS
    else:
        left_out.append("jax")
    folders = [_TESTS / "quick_imports"]
    folders += [_TESTS / "not_imported" / name for name in left_out]
    path = [*map(str, folders), PACKAGE_PARENT]
    environ["PYTHONPATH"] = os.pathsep.join(path)
    for name in environment.defaults({}, 1):
        environ.pop(name, None)
    return {**environ, **extra}
