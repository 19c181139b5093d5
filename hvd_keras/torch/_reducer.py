"""Reduces gradients while `backward` computes those of earlier layers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from hvd_keras._job import state
from hvd_keras._values.buckets import bucket_bytes, bucket_indices
from hvd_keras._values.members import members_of
from hvd_keras.compression import wire_format_of
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Max
from hvd_keras.torch._buckets import Bucket, DenseBucket, Member, SparseBucket
from hvd_keras.torch._call import Call, Reduction, run
from hvd_keras.torch._start import StartCheck
from hvd_keras.torch.allreduce import allreduce

# How many optimizers with a first parameter of this name there have been, by
# generation: two may reduce at the same time.
_counts: collections.Counter[tuple[int, str]] = collections.Counter()
# The hook of each parameter, also of one that is pickled with its attributes.
_hooks: Any = WeakIdKeyDictionary()


class OrderError(InvalidArgumentError, AssertionError):
    """Calls of `backward`, `step` and `zero_grad` in an order that loses work.

    Horovod's programs expect an AssertionError.
    """


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checked arguments of `DistributedOptimizer`."""

    op: int
    compression: Any
    predivide_factor: float
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def how(self) -> Reduction:
        factor = self.predivide_factor
        wire_format = wire_format_of(self.compression)
        return Reduction(self.op, 1.0 / factor, factor, wire_format)


class Reducer:
    """Reduces the gradients of parameters, in the order in which they come.

    In the first step the ranks agree on the order that rank 0 has seen, and on
    what has sparse gradients. Gradients that follow each other make a bucket,
    which is reduced as one as soon as it is complete.

    Args:
        named_parameters: The parameters, each with a name of its own.
        settings: How to reduce.
        passes: The calls of `backward` for one step.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, torch.nn.Parameter]],
        settings: Settings,
        passes: int,
    ) -> None:
        self.passes = passes
        self._settings = settings
        self._lock = threading.Lock()  # GPUs have threads of their own
        self._members: list[Member] = []
        self._order: list[Member] = []  # as they came, without a plan
        self._buckets: list[Bucket] | None = None
        self._generation = state.generation()
        self._reduces: bool | None = None  # None: not asked in this step
        self._is_synchronized = False
        self._skips = False
        self._start_check = StartCheck()
        for name, parameter in named_parameters:
            self.add(name, parameter)
        first = named_parameters[0][0]
        number = _counts[self._generation, first]
        _counts[self._generation, first] += 1
        self._prefix = f"gradients.{number}" if number else "gradients"

    def add(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Adds a parameter; the ranks agree anew in the next step."""
        member = Member(name, parameter)
        former = _hooks.pop(parameter, None)
        if former is not None:  # of an optimizer that this one replaces
            former.remove()
        self._members.append(member)
        self._buckets = None
        if parameter.requires_grad:
            self._follow(member)

    def before_step(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Waits for the gradients; called before `step`."""
        was_synchronized, self._is_synchronized = self._is_synchronized, False
        if self._skips:
            return None
        if was_synchronized:
            warnings.warn(
                "`optimizer.step()` reduces the gradients again after "
                "`optimizer.synchronize()`. Call it inside of `with "
                "optimizer.skip_synchronize():`.",
                stacklevel=4,
            )
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.synchronize()
            self._is_synchronized = False
            return None
        kwargs = {**kwargs, "closure": functools.partial(self._close, closure)}
        return args[:1], kwargs

    def _close(self, closure: Callable[[], Any]) -> Any:
        """Calls a closure; returns the loss of all ranks."""
        loss = closure()
        self.synchronize()
        self._is_synchronized = False
        if not self._is_active() or loss is None:
            return loss
        return allreduce(
            torch.as_tensor(loss).detach(),
            name=f"{self._prefix}/loss",
            process_set=self._settings.process_set,
        )

    @torch.no_grad()
    def synchronize(self) -> None:
        """Reduces what is left, and waits for all gradients."""
        self._renew()
        try:
            if self._is_active():
                self._reduce()
        except Exception:
            # Until their end, the engine writes into the gradients.
            for bucket in self._buckets or ():
                bucket.abandon()
            raise
        finally:
            self._reset()
        self._is_synchronized = True

    def _reduce(self) -> None:
        for member in self._members:
            parameter = member.parameter
            if parameter.requires_grad and parameter not in _hooks:
                self._follow(member)  # it was frozen at first
        if self._buckets is None:
            self._buckets = self._agreed_buckets()
        named = ((each.name, each.parameter) for each in self._members)
        self._start_check(self._prefix, named, self._settings.process_set)
        for bucket in self._buckets:
            if bucket.handle is None:
                bucket.send()
        for bucket in self._buckets:
            bucket.finish()

    def check_zero_grad(self) -> None:
        """Raises OrderError while gradients are being reduced."""
        self._renew()
        if self._is_active() and any(
            member.num_passes >= self.passes for member in self._members
        ):
            raise OrderError(
                "`zero_grad()` must be called before `backward()`, or after "
                "`step()` or `synchronize()`. Received: a call while gradients "
                "are being reduced."
            )

    def skipping(self, skips: bool) -> None:
        """Sets whether `step` leaves the gradients as they are."""
        self._skips = skips

    def _reset(self) -> None:
        for member in self._members:
            member.num_passes = 0
        for bucket in self._buckets or ():
            bucket.reset()
        self._order.clear()
        self._reduces = None

    def _renew(self) -> None:
        """Forgets what was agreed with other members of the job."""
        if self._generation != state.generation():
            self._generation = state.generation()
            self._reset()
            self._buckets = None

    def _is_active(self) -> bool:
        """Whether this rank reduces, and with others."""
        process_set = self._settings.process_set
        if state.topology("DistributedOptimizer").size == 1:
            return False
        if process_set.included() is False:
            return False
        return len(members_of(process_set, "DistributedOptimizer")) > 1

    def _follow(self, member: Member) -> None:
        """Lets autograd tell of the gradients of a parameter."""
        parameter = member.parameter
        _hooks[parameter] = parameter.register_post_accumulate_grad_hook(
            functools.partial(self._on_gradient, member)
        )

    def _on_gradient(self, member: Member, _: torch.Tensor) -> None:
        with self._lock:
            self._renew()
            if self._reduces is None:  # the first gradient of a step
                self._reduces = self._is_active()
            if self._reduces:
                self._note(member)

    def _note(self, member: Member) -> None:
        member.num_passes += 1
        if member.num_passes > self.passes:
            raise OrderError(
                "`backward()` must compute gradients at most "
                "`backward_passes_per_step` times before `step()` or "
                f"`synchronize()`. Received: {member.num_passes} times for "
                f"{member.name!r}, with backward_passes_per_step="
                f"{self.passes}."
            )
        if member.num_passes < self.passes:
            return
        if self._buckets is None:
            self._order.append(member)
            return
        bucket: Any = member.bucket
        bucket.num_ready += 1
        if bucket.num_ready == len(bucket.members):
            with torch.no_grad():  # also of `backward(create_graph=True)`
                bucket.send()

    def _agreed_buckets(self) -> list[Bucket]:
        """Lets the ranks agree on the order of gradients and on sparse ones."""
        settings, members = self._settings, self._members
        call = Call(f"{self._prefix}/order", settings.process_set)
        places = {id(m): 1 + place for place, m in enumerate(self._order)}
        facts = torch.zeros(2, len(members), dtype=torch.int32)
        for i, member in enumerate(members):
            if call.index == 0:
                facts[0, i] = places.get(id(member), 0)
            gradient = member.parameter.grad
            keeps_sparse = not settings.sparse_as_dense
            if keeps_sparse and gradient is not None and gradient.is_sparse:
                facts[1, i] = gradient.sparse_dim()
        # A maximum: a rank that has joined knows nothing and changes nothing.
        (agreed,) = run("allreduce", [facts], call, how=Reduction(Max))
        order, sparse_dims = agreed.tolist()
        last = len(members) + 1
        ordered = sorted(
            range(len(members)), key=lambda i: (order[i] or last, -i)
        )
        dense = [members[i] for i in ordered if not sparse_dims[i]]
        buckets: list[Bucket] = [
            DenseBucket(part, self._prefix, settings)
            for part in self._parts(dense)
        ]
        buckets += [
            SparseBucket([members[i]], self._prefix, settings, sparse_dims[i])
            for i in ordered
            if sparse_dims[i]
        ]
        for number, bucket in enumerate(buckets):
            bucket.number(number)
            for member in bucket.members:
                member.bucket = bucket
        return buckets

    def _parts(self, members: list[Member]) -> list[list[Member]]:
        """Cuts the members, in order, into what is reduced as one."""
        groups = self._settings.groups
        if isinstance(groups, int):
            count = max(1, min(groups, len(members)))
            ends = [len(members) * n // count for n in range(count + 1)]
            parts = [members[ends[n] : ends[n + 1]] for n in range(count)]
            return [part for part in parts if part]
        number_of = {
            id(parameter): number
            for number, group in enumerate(groups or ())
            for parameter in group
        }
        grouped: dict[int, list[Member]] = {}
        others = []
        for member in members:
            number = number_of.get(id(member.parameter))
            if number is None:
                others.append(member)
            else:
                grouped.setdefault(number, []).append(member)
        others.reverse()  # buckets are cut from the end
        sizes = [m.parameter.nbytes for m in others]
        cut = bucket_indices(sizes, bucket_bytes())
        parts = [[others[i] for i in indices] for indices in cut]
        return [*grouped.values(), *parts]


def settings_of(
    op: int, compression: Any, predivide_factor: float, **others: Any
) -> Settings:
    """Returns the settings; raises InvalidArgumentError for bad ones."""
    if predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError(
            "`gradient_predivide_factor` must be 1 unless `op` is Average. "
            f"Received: gradient_predivide_factor={predivide_factor!r}, "
            f"op={op!r}."
        )
    return Settings(op, compression, float(predivide_factor), **others)
