"""DistributedOptimizer for optimizers of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from hvd_keras._values.calls import checked_reduction
from hvd_keras._values.members import members_of
from hvd_keras.compression import Compression, Compressor, to_compressor
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp, Sum
from hvd_keras.torch._deltas import Deltas
from hvd_keras.torch._reducer import Reducer, settings_of


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    op: ReduceOp = Average,
    compression: type[Compressor] | Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Makes an optimizer of torch reduce gradients over the ranks.

    `backward()` begins to reduce gradients, in buckets, while it computes
    others; `step()` waits for them. A gradient that a rank has not computed
    counts as zeros; one that no rank has computed stays None.

    Between `backward()` and `step()`, call `optimizer.synchronize()` before you
    look at gradients or change them. Then take the step inside of `with
    optimizer.skip_synchronize():`.

    A closure given to `step` returns the average of the ranks' losses.

    Args:
        optimizer: An optimizer of `torch.optim`, or derived from it.
        named_parameters: The parameters with their names, as of
            `model.named_parameters()`. The names pair gradients across ranks
            and stand in messages. None: they are numbered.
        op: `Average` or `Sum` of gradients; or `Adasum`, which combines the
            steps that the ranks take on their own.
        compression: In which form gradients travel.
        backward_passes_per_step: The calls of `backward()` for a step. The
            gradients of a rank are added up before they are reduced.
        gradient_predivide_factor: Splits the division of an average:
            gradients are divided by it before the sum, and by the number of
            ranks over it afterwards. For gradients of 16 bits.
        groups: What is reduced as one: a number of groups, or lists of
            parameters. None: buckets of `HVD_BUCKET_BYTES`.
        sparse_as_dense: Whether sparse gradients, as of `torch.nn.Embedding`
            with `sparse=True`, become dense ones. If not, the ranks gather
            their entries.
        process_set: The ranks that take part. Others train alone.

    Returns:
        `optimizer` itself. Its class is a subclass of the one it had, with the
        methods `synchronize`, `skip_synchronize` and
        `set_backward_passes_per_step`.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: An argument is wrong, or `optimizer` is
            distributed already.

    Example:

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = hvd_keras.torch.DistributedOptimizer(
    ...     optimizer, model.named_parameters()
    ... )
    """
    _check(optimizer, backward_passes_per_step)
    op = ReduceOp(checked_reduction(op, 1.0, 1.0)[0])
    if op not in (Average, Sum, Adasum):
        raise InvalidArgumentError(
            f"`op` must be Average, Sum or Adasum. Received: op={op!r}."
        )
    if process_set.included() is not False:
        members_of(process_set, "DistributedOptimizer")
    compression = to_compressor(compression)
    settings = settings_of(
        op,
        compression,
        gradient_predivide_factor,
        groups=_checked_groups(groups),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    named = _named(optimizer, named_parameters)
    reducer: Any
    if op == Adasum:
        everything = [parameter for _, parameter in named]
        reducer = Deltas(everything, compression, process_set)
        optimizer.register_step_post_hook(reducer.after_step)
    else:
        reducer = Reducer(named, settings, backward_passes_per_step)
    optimizer.register_step_pre_hook(reducer.before_step)
    vars(optimizer)["_hvd_reducer"] = reducer
    base = type(optimizer)
    optimizer.__class__ = type(
        base.__name__,
        (_Distributed, base),
        {"__module__": base.__module__, "__qualname__": base.__qualname__},
    )
    return optimizer


class _Distributed(torch.optim.Optimizer):
    """What distributed optimizers have beside what their class has."""

    _hvd_reducer: Any

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; sends those that are left."""
        self._hvd_reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets `step()` take the gradients as they are, after `synchronize`."""
        self._hvd_reducer.skipping(True)
        try:
            yield
        finally:
            self._hvd_reducer.skipping(False)

    @property
    def backward_passes_per_step(self) -> int:
        """The number of calls of `backward()` for a step."""
        return int(self._hvd_reducer.passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of calls of `backward()` for a step."""
        self._hvd_reducer.passes = _checked_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; refused while they are being reduced."""
        self._hvd_reducer.check_zero_grad()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as torch does; their gradients are reduced too."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            self._hvd_reducer.add(_number_name(number, i), parameter)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Makes a copy or a pickle an optimizer of its own class."""
        base = type(self).__mro__[2]
        return _new, (base,), self.__getstate__()


def _new(cls: Any) -> Any:
    return cls.__new__(cls)


def _check(optimizer: Any, passes: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            "`optimizer` must be an optimizer of torch. Received: "
            f"{type(optimizer).__name__}. For one of Keras use "
            "`hvd_keras.DistributedOptimizer`."
        )
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError(
            "`optimizer` must not be distributed already. Received: the result "
            "of `DistributedOptimizer`; call it once."
        )
    _checked_passes(passes)


def _checked_passes(passes: Any) -> int:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(
            "`backward_passes_per_step` must be an integer >= 1. Received: "
            f"{passes!r}."
        )
    return passes


def _checked_groups(groups: Any) -> Any:
    if groups is None:
        return None
    if isinstance(groups, int):
        if isinstance(groups, bool) or groups < 0:
            raise InvalidArgumentError(
                "`groups` must be a number >= 0 or lists of parameters. "
                f"Received: groups={groups!r}."
            )
        return groups or None
    parameters = [
        parameter
        for group in (groups if isinstance(groups, list | tuple) else [None])
        for parameter in (group if isinstance(group, list | tuple) else [None])
    ]
    if not all(isinstance(each, torch.Tensor) for each in parameters):
        raise InvalidArgumentError(
            "`groups` must be a number >= 0 or lists of parameters. Received: "
            f"{groups!r}."
        )
    if len({id(each) for each in parameters}) < len(parameters):
        raise InvalidArgumentError(
            "`groups` must hold each parameter once. Received: one in two "
            "groups."
        )
    return groups


def _number_name(group: int, number: int) -> str:
    return f"parameter.{group}.{number}"


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Any
) -> list[tuple[str, torch.nn.Parameter]]:
    """Returns the optimizer's parameters with names, which differ."""
    numbered = [
        (_number_name(number, i), parameter)
        for number, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]
    given = list(named_parameters or ())
    if not given:
        return numbered
    if not all(isinstance(each, tuple) and len(each) == 2 for each in given):
        raise InvalidArgumentError(
            "`named_parameters` must be pairs of a name and a parameter, as of "
            f"`model.named_parameters()`. Received: {type(given[0]).__name__}."
        )
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            "`named_parameters` must have names that differ. Received: "
            f"{', '.join(map(repr, twice))} more than once."
        )
    name_of = {id(parameter): name for name, parameter in given}
    unnamed = [name for name, each in numbered if id(each) not in name_of]
    if unnamed:
        raise InvalidArgumentError(
            "`named_parameters` must name all parameters of the optimizer. "
            f"Received: names without those of {', '.join(unnamed)}."
        )
    return [(name_of[id(each)], each) for _, each in numbered]
