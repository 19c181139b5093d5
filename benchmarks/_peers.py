"""Ways to sum tensors over ranks, one class a package, for `compare.py`.

Each class makes the calls of one package, in a rank that the package's own
launcher has started. `calls(shapes)` returns functions that sum float32 tensors
of these shapes over the ranks once: `single` with one operation a tensor,
`grouped` with one for all, if the package has that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Shapes = Sequence[Sequence[int]]
Calls = dict[str, Callable[[], object]]


class Peer:
    """A package, and how to start its ranks."""

    name: str
    module: str  # must be installed
    min_ranks = 1
    python = sys.executable  # or that of an environment of its own

    def is_installed(self) -> bool:
        asks = "import importlib.util as u; assert u.find_spec('{}')"
        command = [self.python, "-c", asks.format(self.module)]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode == 0

    def program(self, name: str) -> str:
        """Returns a program beside the interpreter, or else its name."""
        path = os.path.join(os.path.dirname(self.python), name)
        return path if os.path.exists(path) else name

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        """Returns the command and environment of each process to start."""
        raise NotImplementedError

    def start(self) -> None:
        """Joins the job, in a rank."""
        raise NotImplementedError

    def calls(self, shapes: Shapes, key: str) -> Calls:
        raise NotImplementedError

    def meet(self) -> None:
        """Returns when all ranks have called it."""
        raise NotImplementedError


def _arrays(shapes: Shapes) -> list[np.ndarray]:
    return [np.ones(shape, np.float32) for shape in shapes]


class HvdKeras(Peer):
    """This project, inside a `tf.function`."""

    name = "hvd_keras"
    module = "hvd_keras"

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        launcher = [self.python, "-m", "hvd_keras.run", "-np", str(size)]
        return [([*launcher, "--", *worker], {})]

    def start(self) -> None:
        import hvd_keras as hvd

        hvd.init()

    def meet(self) -> None:
        from hvd_keras import _core

        _core.allreduce("meet", [np.zeros(1, np.float32)], 1)

    def calls(self, shapes: Shapes, key: str) -> Calls:
        import tensorflow as tf

        import hvd_keras as hvd

        tensors = [tf.constant(array) for array in _arrays(shapes)]

        @tf.function
        def single() -> tf.Tensor:
            with tf.control_dependencies(
                [
                    hvd.allreduce(t, op=hvd.Sum, name=f"{key}_{i}")
                    for i, t in enumerate(tensors)
                ]
            ):
                return tf.constant(0)

        @tf.function
        def grouped() -> tf.Tensor:
            sums = hvd.grouped_allreduce(tensors, op=hvd.Sum, name=key)
            with tf.control_dependencies(sums):
                return tf.constant(0)

        return {"single": single, "grouped": grouped}


class TensorFlowRing(Peer):
    """TensorFlow's own collectives (RING), as its strategies use them."""

    name = "tensorflow"
    module = "tensorflow"
    min_ranks = 2

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        workers = [f"127.0.0.1:{port + rank}" for rank in range(size)]
        return [
            (
                worker,
                {
                    "TF_CONFIG": json.dumps(
                        {
                            "cluster": {"worker": workers},
                            "task": {"type": "worker", "index": rank},
                        }
                    )
                },
            )
            for rank in range(size)
        ]

    def start(self) -> None:
        import tensorflow as tf

        options = tf.distribute.experimental.CommunicationOptions(
            implementation=(
                tf.distribute.experimental.CommunicationImplementation.RING
            )
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=options
        )

    def meet(self) -> None:
        import tensorflow as tf

        if not hasattr(self, "_meet"):
            self._meet = self.calls([[1]], "meet")["single"]
        tf.convert_to_tensor(self._meet())

    def calls(self, shapes: Shapes, key: str) -> Calls:
        import tensorflow as tf

        strategy = self._strategy
        tensors = [tf.constant(array) for array in _arrays(shapes)]

        def reduce(values: list[tf.Tensor]) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

        def each() -> tf.Tensor:
            with tf.control_dependencies([reduce([t])[0] for t in tensors]):
                return tf.constant(0)

        def together() -> tf.Tensor:
            with tf.control_dependencies(reduce(tensors)):
                return tf.constant(0)

        return {
            "single": tf.function(lambda: strategy.run(each)),
            "grouped": tf.function(lambda: strategy.run(together)),
        }


class Torch(Peer):
    """torch.distributed on Gloo; asynchronous calls, then a wait."""

    name = "torch"
    module = "torch"

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        return [
            (
                worker,
                {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for rank in range(size)
        ]

    def start(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")

    def meet(self) -> None:
        import torch.distributed as dist

        dist.barrier()

    def calls(self, shapes: Shapes, key: str) -> Calls:
        import torch
        import torch.distributed as dist

        tensors = [torch.ones(list(shape)) for shape in shapes]

        def single() -> None:
            handles = [dist.all_reduce(t, async_op=True) for t in tensors]
            for handle in handles:
                handle.wait()

        def grouped() -> None:
            flat = torch.cat([t.reshape(-1) for t in tensors])
            dist.all_reduce(flat)
            parts = flat.split([t.numel() for t in tensors])
            for t, part in zip(tensors, parts, strict=True):
                t.copy_(part.view_as(t))

        return {"single": single, "grouped": grouped}


class Mpi(Peer):
    """mpi4py on the installed MPI; in place, one call a tensor."""

    name = "mpi4py"
    module = "mpi4py"

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        return [([self.program("mpiexec"), "-n", str(size), *worker], {})]

    def start(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI

    def meet(self) -> None:
        self._mpi.COMM_WORLD.Barrier()

    def calls(self, shapes: Shapes, key: str) -> Calls:
        mpi, world = self._mpi, self._mpi.COMM_WORLD
        arrays = _arrays(shapes)

        def single() -> None:
            for array in arrays:
                world.Allreduce(mpi.IN_PLACE, array, mpi.SUM)

        def grouped() -> None:
            flat = np.concatenate([array.ravel() for array in arrays])
            world.Allreduce(mpi.IN_PLACE, flat, mpi.SUM)
            begin = 0
            for array in arrays:
                part = flat[begin : begin + array.size]
                np.copyto(array, part.reshape(array.shape))
                begin += array.size

        return {"single": single, "grouped": grouped}


class Horovod(Peer):
    """Horovod's TensorFlow ops inside a `tf.function`."""

    name = "horovod"
    module = "horovod"

    def commands(
        self, size: int, worker: list[str], port: int
    ) -> list[tuple[list[str], dict[str, str]]]:
        return [([self.program("horovodrun"), "-np", str(size), *worker], {})]

    def start(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd

    def meet(self) -> None:
        import tensorflow as tf

        self._hvd.allreduce(tf.zeros(1), name="meet", op=self._hvd.Sum)

    def calls(self, shapes: Shapes, key: str) -> Calls:
        import tensorflow as tf

        hvd: Any = self._hvd
        constants = [tf.constant(array) for array in _arrays(shapes)]

        def named() -> list[tf.Tensor]:
            # Horovod takes tensors of the graph alone. This copies nothing.
            return [tf.identity(t) for t in constants]

        # Its ops have no state: TensorFlow leaves them out unless their sums
        # are used.
        @tf.function
        def single() -> list[tf.Tensor]:
            return [hvd.allreduce(t, op=hvd.Sum) for t in named()]

        @tf.function
        def grouped() -> list[tf.Tensor]:
            sums: list[tf.Tensor] = hvd.grouped_allreduce(named(), op=hvd.Sum)
            return sums

        return {"single": single, "grouped": grouped}


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (HvdKeras(), TensorFlowRing(), Torch(), Mpi(), Horovod())
}
