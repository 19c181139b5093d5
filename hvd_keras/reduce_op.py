"""How the values of the ranks combine."""

from __future__ import annotations

import enum


class ReduceOp(enum.IntEnum):
    """The reductions of `allreduce`; the numbers are those of the engine.

    `Adasum` adds what is orthogonal and averages what is parallel (Maleki et
    al. 2020, arXiv:2006.02924); for floating dtypes, in an allreduce.
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
