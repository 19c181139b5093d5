"""Streams of random numbers that no layer holds, and each rank's own part.

Ranks that set the same seed have the same streams, and so the same weights and
orders. While they train, each draws from streams of its own. `common` goes back
to those that all ranks share.

| Private name | Used to |
|---|---|
| `keras.src.random.seed_generator.global_seed_generator` (replaced) | \
`keras.random.*` |
| `keras.src.backend.common.global_state` | put another generator there |
| `tensorflow.python.eager.context.Context._seed` | `tf.random.*` |
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import numpy as np

from hvd_keras._common.replacements import replace
from hvd_keras._keras import name_counts
from hvd_keras._keras.lookup import private_module, require

_seeds: Any = private_module("random.seed_generator")
_globals: Any = private_module("backend.common.global_state")
_GENERATOR: str = require(_seeds, "GLOBAL_SEED_GENERATOR")
_make_generator: Any = require(_seeds, "global_seed_generator", [])


def _seed_of(rank: int, *numbers: int) -> int:
    """Returns a seed that is far from those of others, rank 0 among them."""
    return int(np.random.default_rng([*numbers, rank]).integers(1 << 31))


class Stream(Protocol):
    """A stream of random numbers of this process."""

    def get(self) -> Any:
        """Returns its state."""

    def set(self, state: Any) -> None:
        """Goes on from a state."""

    def move(self, rank: int) -> Any:
        """Goes to the part of a rank; returns the state that all ranks share.

        The next `move` goes elsewhere, if this part has been drawn from.
        """

    def end(self, state: Any) -> None:
        """Goes back to that state, unless somebody has set a new seed."""


class _OfKeras:
    """What `keras.random` draws from in a thread, if it gets no seed."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def get(self) -> Any:
        return keras.ops.convert_to_numpy(self.generator.state).copy()

    def set(self, state: Any) -> None:
        self.generator.state.assign(state)

    def move(self, rank: int) -> Any:
        drawn = self.generator.next(ordered=False)
        numbers = map(int, keras.ops.convert_to_numpy(drawn))
        shared = self.get()
        self.set([_seed_of(rank, *numbers), 0])
        return shared

    def end(self, state: Any) -> None:
        self.set(state)


class _OfThisThread:
    """The same for the thread that trains: it gets another generator.

    Functions that were traced before keep the old one. Those in front of
    `hvd.shard` have to draw the same numbers on all ranks.
    """

    generator: Any = None

    def get(self) -> Any:
        return _globals.get_global_attribute(_GENERATOR)

    def set(self, state: Any) -> None:
        _globals.set_global_attribute(_GENERATOR, state)

    def move(self, rank: int) -> Any:
        shared = self.get()
        self.generator = _generator_of(rank, shared)
        self._begin = keras.ops.convert_to_numpy(self.generator.state).copy()
        self.set(self.generator)
        return shared

    def end(self, state: Any) -> None:
        now = keras.ops.convert_to_numpy(self.generator.state)
        self.set(state)
        if np.array_equal(now, self._begin):
            return
        # One process has made it meanwhile, or gone on with it.
        generator = _make_generator()
        if state is not None:
            generator.next(ordered=False)


def _generator_of(rank: int, shared: Any) -> Any:
    """Returns a new generator of this rank, given that which all share."""
    if shared is None:
        # One process draws its seed when it needs one.
        before = random.getstate()
        numbers = [_seeds.make_default_seed()]
        random.setstate(before)
    else:
        numbers = keras.ops.convert_to_numpy(shared.state).tolist()
    with name_counts.uncounted():
        return keras.random.SeedGenerator(_seed_of(rank, *numbers))


class _OfTensorFlow:
    """The seed of `tf.random`; None unless the program has set one.

    The seeds of the ops stay: they come one after the other.
    """

    def __init__(self, context: Any) -> None:
        self._context = require(context, "context")()
        if not hasattr(self._context, "_seed"):
            raise ImportError(
                "hvd_keras needs the private name `Context._seed`, which is "
                "missing in this version of TensorFlow."
            )
        self._moved: int | None = None

    def get(self) -> int | None:
        seed: int | None = self._context._seed
        return seed

    def set(self, state: int | None) -> None:
        self._context._seed = state

    def move(self, rank: int) -> int | None:
        shared = self.get()
        if shared is not None:
            self.set(_seed_of(rank, shared))
        self._moved = self.get()
        return shared

    def end(self, state: int | None) -> None:
        if self.get() == self._moved:
            self.set(state)


class _OfTorch:
    """torch's own generators: Keras drops out with them, if it runs on torch.

    A program that sets no seed has the same ones on all ranks.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def get(self) -> list[Any]:
        states = [self._torch.get_rng_state()]
        if self._torch.cuda.is_initialized():
            states += self._torch.cuda.get_rng_state_all()
        return states

    def set(self, state: list[Any]) -> None:
        self._torch.set_rng_state(state[0])
        if state[1:]:
            self._torch.cuda.set_rng_state_all(state[1:])

    def move(self, rank: int) -> list[Any]:
        shared = self.get()
        self._torch.manual_seed(_seed_of(rank, self._draw()))
        self._begin = self.get()
        return shared

    def end(self, state: list[Any]) -> None:
        now = self.get()
        is_used = len(now) != len(self._begin) or not all(
            map(self._torch.equal, now, self._begin)
        )
        self.set(state)
        if is_used:  # the next part is another one
            self._draw()

    def _draw(self) -> int:
        return int(self._torch.randint(1 << 31, (), device="cpu"))


def _streams() -> list[Stream]:
    context = sys.modules.get("tensorflow.python.eager.context")
    torch = sys.modules.get("torch")
    streams: list[Stream] = [_OfThisThread()]
    if context is not None:
        streams.append(_OfTensorFlow(context))
    if torch is not None:
        streams.append(_OfTorch(torch))
    return streams


class _Moved:
    """A stream that was moved to the part of a rank."""

    def __init__(self, stream: Stream, rank: int) -> None:
        self.stream = stream
        self._shared = stream.move(rank)
        self._own: Any = None
        self._num_common = 0  # contexts that draw in common

    def begin_common(self) -> None:
        if self._num_common == 0:
            self._own = self.stream.get()
            self.stream.set(self._shared)
        self._num_common += 1

    def end_common(self) -> None:
        self._num_common -= 1
        if self._num_common == 0:
            self._shared = self.stream.get()
            self.stream.set(self._own)

    def end(self) -> None:
        self.stream.end(self._shared)


class _Apart:
    """All streams, moved apart."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._moved: list[_Moved] = []
        self._num_common = 0
        for stream in _streams():
            self._add(stream)

    def take_in(self, generator: Any) -> None:
        """Moves a generator of Keras, unless it has been or draws in common."""
        is_known = getattr(generator, "_hvd_apart", None) is self
        tf = sys.modules.get("tensorflow")
        if is_known or self._num_common or (tf and not tf.executing_eagerly()):
            return
        self._add(_OfKeras(generator))

    def end(self) -> None:
        for moved in self._moved:
            moved.end()

    @contextlib.contextmanager
    def common(self, *, only_seed: bool) -> Iterator[None]:
        with _lock:
            parts = [
                moved
                for moved in self._moved
                if not only_seed or isinstance(moved.stream, _OfTensorFlow)
            ]
            self._num_common += not only_seed
            for moved in parts:
                moved.begin_common()
        try:
            yield  # without the lock: what runs here may wait for threads
        finally:
            with _lock:
                self._num_common -= not only_seed
                for moved in parts:
                    moved.end_common()

    def _add(self, stream: Stream) -> None:
        self._moved.append(_Moved(stream, self._rank))
        if isinstance(stream, _OfKeras | _OfThisThread):
            stream.generator._hvd_apart = self


_running: list[_Apart] = []
_lock = threading.RLock()


def install() -> None:
    """Hooks into Keras. A second call does nothing."""
    replace(_seeds, "global_seed_generator", lambda _: _moved_generator)


def _moved_generator() -> Any:
    """Returns Keras's generator of this thread, moved as that which trains.

    Keras has one for each thread, and data are read in threads.
    """
    generator = _make_generator()
    for apart in _running[-1:]:
        with _lock:
            apart.take_in(generator)
    return generator


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """A context after which all streams go on as if it had drawn nothing."""
    torch = sys.modules.get("torch")
    generator = _OfThisThread().get()
    streams: list[Stream] = []
    if torch is not None:
        streams.append(_OfTorch(torch))
    if generator is not None:
        streams.append(_OfKeras(generator))
    before = [each.get() for each in streams]
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for stream, state in zip(streams, before, strict=True):
            stream.set(state)


def move_apart(rank: int) -> Callable[[], None]:
    """Moves all streams to the parts of a rank; returns what ends that."""
    with _lock:
        apart = _Apart(rank)
        _running.append(apart)

    def end() -> None:
        with _lock:
            apart.end()
            _running.remove(apart)

    return end


@contextlib.contextmanager
def traced_for(rank: int, owner: Any) -> Iterator[None]:
    """A context in which functions are traced with the streams of a rank.

    Args:
        rank: The rank.
        owner: An object that lives as long as the functions.
    """
    context = sys.modules["tensorflow.python.eager.context"]
    with common(only_seed=True):
        streams: list[Stream] = [_OfTensorFlow(context), _OfThisThread()]
        owner._hvd_streams = streams
        shared = [stream.move(rank) for stream in streams]
        try:
            yield
        finally:
            for stream, state in zip(streams, shared, strict=True):
                stream.set(state)


@contextlib.contextmanager
def common(*, only_seed: bool = False) -> Iterator[None]:
    """A context in which this rank draws the numbers that all ranks draw.

    Code that decides on an order needs it.

    Args:
        only_seed: Whether only TensorFlow's seed is that of all ranks. Needed
            in threads, for numbers that other threads draw must not advance.
    """
    if not _running:
        yield
        return
    with _running[0].common(only_seed=only_seed):
        yield
