"""Keras callbacks for training on several ranks."""

from hvd_keras.callbacks.backup_and_restore import BackupAndRestore
from hvd_keras.callbacks.best_model_checkpoint import BestModelCheckpoint
from hvd_keras.callbacks.broadcast_global_variables import (
    BroadcastGlobalVariablesCallback,
)
from hvd_keras.callbacks.communication_logger import CommunicationLogger
from hvd_keras.callbacks.consistency_check import ConsistencyCheck
from hvd_keras.callbacks.learning_rate_schedule import (
    LearningRateScheduleCallback,
)
from hvd_keras.callbacks.learning_rate_warmup import LearningRateWarmupCallback
from hvd_keras.callbacks.metric_average import MetricAverageCallback
from hvd_keras.callbacks.model_checkpoint import ModelCheckpoint
from hvd_keras.callbacks.steps_guard import StepsGuard
from hvd_keras.callbacks.sync_early_stopping import SyncEarlyStopping
from hvd_keras.callbacks.throughput import ThroughputCallback

__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommunicationLogger",
    "ConsistencyCheck",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ModelCheckpoint",
    "StepsGuard",
    "SyncEarlyStopping",
    "ThroughputCallback",
]
