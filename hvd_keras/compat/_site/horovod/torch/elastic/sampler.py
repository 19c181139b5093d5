"""`horovod.torch.elastic.sampler`."""

from hvd_keras.elastic import ElasticSampler as ElasticSampler
