"""Gradients that are reduced as one."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch

from hvd_keras.exceptions import HvdError, InvalidArgumentError
from hvd_keras.torch._call import Call, Handle, Reduction, begin
from hvd_keras.torch._models import naming
from hvd_keras.torch.sparse_allreduce import sparse_allreduce_async


class ReduceSettings(Protocol):
    """What a bucket reads of the optimizer's settings."""

    @property
    def op(self) -> Any: ...
    @property
    def how(self) -> Reduction: ...
    @property
    def compression(self) -> Any: ...
    @property
    def process_set(self) -> Any: ...


class Member:
    """A parameter of a distributed optimizer."""

    def __init__(self, name: str, parameter: torch.nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        self.num_passes = 0  # of `backward`, since the last step
        self.bucket: Bucket | None = None


class Bucket:
    """Some parameters, whose gradients are reduced as one."""

    def __init__(
        self, members: list[Member], prefix: str, settings: ReduceSettings
    ) -> None:
        self.members = members
        self.num_ready = 0
        self.handle: Handle | None = None
        self._settings = settings
        self._name = f"{prefix}/{members[0].name}"

    def number(self, number: int) -> None:
        """Notes which bucket of a step it is; by that, others know steps."""
        self._name += f"/bucket_{number}"

    def send(self) -> None:
        """Begins the reduction. All ranks must do so."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits for its end; the parameters have the results."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Waits for its end, whatever that is."""
        if self.handle is not None:
            with contextlib.suppress(HvdError):
                self.handle.wait()

    def reset(self) -> None:
        """Makes ready for the next step."""
        self.num_ready = 0
        self.handle = None


class DenseBucket(Bucket):
    """Dense gradients, reduced in the memory where autograd has put them.

    A gradient that this rank has not computed takes part as zeros. If no rank
    has it, it stays away, as in one process.
    """

    def send(self) -> None:
        """Begins the reduction."""
        compression = self._settings.compression
        wires = []
        self._contexts = []
        self._has_own = []
        for member in self.members:
            parameter = member.parameter
            gradient = parameter.grad
            self._has_own.append(gradient is not None)
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            elif gradient.layout != torch.strided:
                gradient = parameter.grad = gradient.to_dense()
            wire, context = compression.compress(gradient.detach())
            wires.append(wire)
            self._contexts.append(context)
        flags = torch.tensor(self._has_own, dtype=torch.float32)
        self.handle = begin(
            "allreduce",
            [*wires, flags],
            Call(self._name, self._settings.process_set),
            how=self._settings.how,
            in_place=True,
        )
        self._versions = list(map(_version_of, self.members))

    def finish(self) -> None:
        """Waits; gives the parameters their gradients."""
        assert self.handle is not None
        versions = list(map(_version_of, self.members))
        with naming([member.name for member in self.members]):
            *wires, flags = self.handle.wait()
        for member, now, before in zip(
            self.members, versions, self._versions, strict=True
        ):
            if now != before:
                raise InvalidArgumentError(
                    "A gradient must not be changed while it is being reduced. "
                    "Call `optimizer.synchronize()` before what changes it, as "
                    "`clip_grad_norm_` and `scaler.unscale_` do, and then step "
                    "under `with optimizer.skip_synchronize():`. Received: "
                    f"another gradient of {member.name!r} than `backward()` "
                    "has computed."
                )
        decompress = self._settings.compression.decompress
        for member, wire, context, flag in zip(
            self.members, wires, self._contexts, flags.tolist(), strict=True
        ):
            if flag == 0:
                continue  # no rank has it
            reduced = decompress(wire, context)
            gradient = member.parameter.grad
            if gradient is None:
                member.parameter.grad = reduced
            elif gradient.data_ptr() != reduced.data_ptr():
                gradient.copy_(reduced)


def _version_of(member: Member) -> tuple[int, int]:
    """Returns what changes with each write to a gradient by torch."""
    gradient = member.parameter.grad
    if gradient is None or gradient.is_inference():
        return 0, 0
    return gradient.data_ptr(), gradient._version


class SparseBucket(Bucket):
    """A sparse gradient: the entries of all ranks are gathered."""

    def __init__(
        self,
        members: list[Member],
        prefix: str,
        settings: ReduceSettings,
        sparse_dim: int,
    ) -> None:
        super().__init__(members, prefix, settings)
        self._sparse_dim = sparse_dim

    def send(self) -> None:
        """Begins to gather."""
        (member,) = self.members
        parameter = member.parameter
        gradient = parameter.grad
        if gradient is None:
            dim = self._sparse_dim
            gradient = torch.sparse_coo_tensor(
                torch.zeros(dim, 0, dtype=torch.int64),
                torch.zeros(0, *parameter.shape[dim:], dtype=parameter.dtype),
                parameter.shape,
                device=parameter.device,
                check_invariants=False,
            )
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(self._sparse_dim)
        self.handle = sparse_allreduce_async(
            gradient,
            self._settings.op,
            name=self._name,
            process_set=self._settings.process_set,
        )

    def finish(self) -> None:
        """Waits; gives the parameter its gradient."""
        assert self.handle is not None
        (member,) = self.members
        merged = self.handle.wait()
        if merged._nnz() or member.parameter.grad is not None:
            member.parameter.grad = merged
