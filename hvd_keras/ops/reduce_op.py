"""How the values of the ranks combine."""

from __future__ import annotations

import enum


class ReduceOp(enum.IntEnum):
    """The reductions of `allreduce`; the numbers are those of the engine.

    2 is kept free: it is Adasum elsewhere.
    """

    Average = 0
    Sum = 1
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
