"""`horovod.tensorflow.compression`."""

from hvd_keras.compression import Compression, Compressor

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
