"""The operations that combine the values of the ranks."""

from __future__ import annotations

import enum


class ReduceOp(enum.IntEnum):
    """The reductions of `allreduce`. The engine uses the same numbers.

    `Adasum` adds gradients that are orthogonal and averages those that are
    parallel (Maleki et al. 2020, arXiv:2006.02924). It needs a floating dtype,
    and only allreduces have it.
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
