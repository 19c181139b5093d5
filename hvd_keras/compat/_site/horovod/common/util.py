"""`horovod.common.util`: the functions that programs use."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hvd_keras.compat.basics import ccl_built as ccl_built
from hvd_keras.compat.basics import check_extension as check_extension
from hvd_keras.compat.basics import (
    check_num_rank_power_of_2 as check_num_rank_power_of_2,
)
from hvd_keras.compat.basics import cuda_built as cuda_built
from hvd_keras.compat.basics import ddl_built as ddl_built
from hvd_keras.compat.basics import extension_available as extension_available
from hvd_keras.compat.basics import gloo_built as gloo_built
from hvd_keras.compat.basics import gpu_available as gpu_available
from hvd_keras.compat.basics import (
    handle_average_backwards_compatibility as _handle_average,
)
from hvd_keras.compat.basics import (
    is_version_greater_equal_than as is_version_greater_equal_than,
)
from hvd_keras.compat.basics import mpi_built as mpi_built
from hvd_keras.compat.basics import nccl_built as nccl_built
from hvd_keras.compat.basics import num_rank_is_power_2 as num_rank_is_power_2
from hvd_keras.compat.basics import rocm_built as rocm_built


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[Any, Any], Any]:
    """Returns the function that maps `average=` to a reduction."""
    del reduce_ops
    return _handle_average


def is_iterable(value: Any) -> bool:
    """Whether `value` can be iterated over."""
    return isinstance(value, Iterable)


def split_list(values: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """Cuts a list into parts of about equal length."""
    short, num_longer = divmod(len(values), num_parts)
    parts, begin = [], 0
    for number in range(num_parts):
        end = begin + short + (number < num_longer)
        parts.append(values[begin:end])
        begin = end
    return parts
