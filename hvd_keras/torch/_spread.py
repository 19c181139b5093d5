"""The gradients of `Min`, `Max` and `Product` over the ranks."""

from __future__ import annotations

import torch

from hvd_keras.reduce_op import Max, Min, Product, Sum
from hvd_keras.torch._call import Call, Reduction, run
from hvd_keras.torch.grouped_allgather import gathered


def spread(
    x: torch.Tensor, total: torch.Tensor, how: Reduction, call: Call
) -> torch.Tensor:
    """Returns the gradient of a reduction with respect to this rank's input.

    Args:
        x: This rank's input.
        total: The sum of the ranks' upstream gradients, in the shape of `x`.
        how: The reduction: a `Min`, `Max` or `Product`.
        call: Pairs the collectives in here across ranks.
    """
    if how.op == Product:
        return total * _product_of_others(x, how, call) * how.factor
    op = how.op
    if how.prescale < 0:  # a negative factor reverses the order
        op = int(Min if op == Max else Max)
    (extremum,) = run(
        "allreduce", [x], call.part("extremum"), how=Reduction(op)
    )
    is_extremal = (x.detach() == extremum).to(x.dtype)
    (num_ties,) = run(
        "allreduce", [is_extremal], call.part("ties"), how=Reduction(Sum)
    )
    # If the extremum is NaN, no rank equals it: 0 ties.
    return total * (is_extremal / num_ties.clamp(min=1)) * how.factor


def _product_of_others(
    x: torch.Tensor, how: Reduction, call: Call
) -> torch.Tensor:
    """Returns the product of the other ranks' values.

    A division of the whole product by `x` would be inexact, and impossible
    where `x` is zero.
    """
    wide = torch.float32 if x.element_size() == 2 else x.dtype
    rows = gathered((x * how.prescale)[None], call.part("factors")).to(wide)
    rank = call.index
    return torch.cat([rows[:rank], rows[rank + 1 :]]).prod(dim=0).to(x.dtype)
