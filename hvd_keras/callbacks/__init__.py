"""Keras callbacks for training on several ranks."""

from hvd_keras.callbacks.broadcast_global_variables import (
    BroadcastGlobalVariablesCallback,
)
from hvd_keras.callbacks.learning_rate_schedule import (
    LearningRateScheduleCallback,
)
from hvd_keras.callbacks.learning_rate_warmup import LearningRateWarmupCallback
from hvd_keras.callbacks.metric_average import MetricAverageCallback

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
