"""The state of a training loop on torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from hvd_keras.elastic.sampler import ElasticSampler
from hvd_keras.elastic.state import ObjectState
from hvd_keras.torch.objects import allgather_object
from hvd_keras.torch.parameters import (
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """Keeps one thing of a `TorchState`; a base class.

    Args:
        value: The thing.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Keeps its state in memory."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Goes back to what was saved."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks the state of `root_rank`, and saves it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Keeps another thing from now on."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Keeps the parameters and buffers of a model."""

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks those of `root_rank`, and saves them."""
        broadcast_parameters(self.value.state_dict(), root_rank)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Keeps the state of an optimizer."""

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks that of `root_rank`, and saves it."""
        broadcast_optimizer_state(self.value, root_rank)
        self.save()


class SamplerStateHandler(StateHandler):
    """Keeps which rows of the epoch are done, on any rank."""

    def sync(self, root_rank: int = 0) -> None:
        """Tells all ranks the rows that any has done; they deal the others."""
        states = allgather_object(
            {
                "epoch": self.value.epoch,
                "processed_indices": sorted(self.value.processed_indices),
            },
            name="elastic/sampler",
        )
        epoch = states[root_rank]["epoch"]
        done: set[int] = set()
        for each in states:
            if each["epoch"] == epoch:
                done.update(each["processed_indices"])
        self.value.load_state_dict({"epoch": epoch, "processed_indices": done})
        self.save()


_HANDLERS: list[tuple[type, Callable[[Any], StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


class TorchState(ObjectState):
    """Keeps a model, its optimizer, samplers, and plain values as attributes.

    Args:
        model: A `torch.nn.Module`.
        optimizer: Its optimizer, distributed or not.
        **kw: Further models, optimizers and `ElasticSampler`s, and plain
            values: see `ObjectState`; mostly `epoch` and `batch`.

    Example:

    >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)
    """

    _hvd_handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kw: Any,
    ) -> None:
        things = {"model": model, "optimizer": optimizer, **kw}
        vars(self)["_hvd_handlers"] = {
            name: make(value)
            for name, value in things.items()
            for kind, make in _HANDLERS
            if isinstance(value, kind)
        }
        for name in ("model", "optimizer"):
            if things[name] is None:
                del things[name]
                vars(self)[name] = None
        others = {
            name: value
            for name, value in things.items()
            if name not in self._hvd_handlers
        }
        super().__init__(**others)
        for name, handler in self._hvd_handlers.items():
            vars(self)[name] = handler.value

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; another model, optimizer or sampler is kept."""
        super().__setattr__(name, value)
        handler = self._hvd_handlers.get(name)
        if handler is not None:
            handler.set_value(value)

    def save(self) -> None:
        """Keeps everything in memory."""
        for handler in self._hvd_handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved."""
        for handler in self._hvd_handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks what `root_rank` has, and saves."""
        for handler in self._hvd_handlers.values():
            handler.sync(self.root_rank)
        super().sync()
