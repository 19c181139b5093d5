"""Batch normalization with the moments of the rows of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvd_keras._job import state
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum
from hvd_keras.torch.allreduce import allreduce


class SyncBatchNorm(_BatchNorm):
    """As `torch.nn.SyncBatchNorm`, over the ranks, on the CPU too.

    While it trains, mean and variance are those of the rows of all ranks, each
    row counted once; a rank may have none. All ranks call their layers in the
    same order. In `eval()` it is torch's `BatchNorm`.

    Args:
        num_features: The number of channels: dimension 1 of the input.
        eps: As for `torch.nn.BatchNorm2d`.
        momentum: As for `torch.nn.BatchNorm2d`.
        affine: As for `torch.nn.BatchNorm2d`.
        track_running_stats: As for `torch.nn.BatchNorm2d`.
        process_set: The ranks whose rows count.

    Example:

    >>> layer = hvd_keras.torch.SyncBatchNorm(16)
    >>> model = hvd_keras.torch.SyncBatchNorm.convert_sync_batchnorm(model)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: ProcessSet = global_process_set,
        **factory: Any,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, **factory
        )
        self._process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls,
        module: torch.nn.Module,
        process_set: ProcessSet = global_process_set,
    ) -> torch.nn.Module:
        """Returns `module` with its batch normalizations replaced.

        Args:
            module: A model, or a layer.
            process_set: The ranks whose rows count.
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(
                *(module.num_features, module.eps, module.momentum),
                *(module.affine, module.track_running_stats),
                process_set=process_set,
            )
            made.weight, made.bias = module.weight, module.bias
            made.running_mean = module.running_mean
            made.running_var = module.running_var
            made.num_batches_tracked = module.num_batches_tracked
            made.training = module.training
            return made
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_set)
            if converted is not child:
                module.add_module(name, converted)
        return module

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Returns the normalized input."""
        uses_batch = self.training or self.running_mean is None
        size = state.topology("SyncBatchNorm").size
        if not uses_batch or size == 1 or not self._process_set.included():
            result: torch.Tensor = super().forward(input)
            return result
        self._check_input_dim(input)
        mean, variance, count = self._moments(input)
        if self.training and self.track_running_stats:
            self._update(mean.detach(), variance.detach(), count)
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        values = (input - mean.view(shape)) * scale.view(shape)
        if self.affine:
            values = values + self.bias.view(shape)
        normalized: torch.Tensor = values.to(input.dtype)
        return normalized

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(
                "`input` must have two dimensions or more. Received: "
                f"{input.dim()}."
            )

    def _moments(
        self,
        input: torch.Tensor,  # noqa: A002
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Returns mean, variance and number of the values of a channel.

        Sums of squares are taken around the rank's own mean, and the sums
        travel in float64: a large mean costs no digits.
        """
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = input.numel() / max(1, input.shape[1])
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        own = values.detach().mean(axes) if count else values.sum(axes).detach()
        shape = [1, -1] + [1] * (input.dim() - 2)
        off = values - own.view(shape)
        own, sums = own.double(), off.sum(axes).double()
        squares = (off * off).sum(axes).double()
        squares = squares + 2 * own * sums + count * own * own
        sums = sums + count * own
        counts = torch.full_like(sums[:1], count)
        total = allreduce(
            torch.cat([counts, sums, squares]),
            Sum,
            process_set=self._process_set,
        )
        number = float(total[0].detach())
        mean, mean_square = (total[1:] / max(number, 1.0)).chunk(2)
        variance = (mean_square - mean * mean).clamp(min=0)
        return mean.to(values.dtype), variance.to(values.dtype), number

    def _update(
        self, mean: torch.Tensor, variance: torch.Tensor, count: float
    ) -> None:
        if self.num_batches_tracked is None or not count:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1.0))
        for running, new in (
            (self.running_mean, mean),
            (self.running_var, unbiased),
        ):
            running.lerp_(new.to(running.dtype), momentum)
