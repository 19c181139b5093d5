"""Gives a rank its own GPUs, unless its launcher has done so."""

from __future__ import annotations

import os
import sys

from hvd_keras._common import gpus, log
from hvd_keras.config import Config


def has_own_gpu(config: Config) -> bool:
    """Whether this process sees its share of the GPUs alone."""
    entries = gpus.visible(os.environ, config.nvml_library)
    return 0 < len(entries) <= config.gpus_per_rank


def pin(config: Config, local_rank: int, local_size: int) -> int:
    """Shows this process its share of the host's GPUs alone.

    CUDA reads the variable when it starts; frameworks that have started it
    already are told by themselves. hvdrun's ranks see their share before that.

    Args:
        config: The settings of the job.
        local_rank: This rank, among those of its host.
        local_size: How many ranks the host has.

    Returns:
        The number that CUDA then gives to the first GPU of this rank. It may
        not exist.
    """
    entries = gpus.visible(os.environ, config.nvml_library)
    share = gpus.share_of(
        entries,
        local_rank,
        local_size,
        config.gpus_per_rank,
        may_share=config.gpu_share,
    )
    if 0 < len(entries) <= max(1, config.gpus_per_rank):
        return 0
    if not share or share == entries:
        return local_rank
    first = entries.index(share[0])
    os.environ[gpus.VARIABLE] = ",".join(share)
    is_first = _pin_tensorflow(first, len(share), len(entries))
    is_first = _pin_torch(first) and is_first
    log.info(
        f"sees GPU {','.join(share)} of {','.join(entries)} "
        "(HVD_GPUS_PER_RANK=0: all)"
    )
    return 0 if is_first else first


def _pin_tensorflow(first: int, count: int, num_all: int) -> bool:
    """Returns whether CUDA, as far as TensorFlow shows, sees the share alone.

    TensorFlow may have listed the GPUs before the variable was set.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return True
    found = tf.config.list_physical_devices("GPU")
    if len(found) < num_all:
        return True
    try:
        tf.config.set_visible_devices(found[first : first + count], "GPU")
    except RuntimeError:
        log.warning(
            "TensorFlow uses all GPUs, for it began before `hvd.init()`. Call "
            "`init()` first, or start the ranks with hvdrun."
        )
    return False


def _pin_torch(first: int) -> bool:
    """Returns whether torch has not started CUDA before this."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    torch.cuda.set_device(first)
    return False
