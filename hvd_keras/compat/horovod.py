"""Makes `import horovod` import hvd_keras from here on in this process.

    import hvd_keras.compat.horovod
    import horovod.tensorflow.keras as hvd

Python then finds the package `horovod` in `_site`, beside this file.
`hvdrun --horovod-compat` puts the same folder on the PYTHONPATH of the ranks.
Processes that this one starts find it too, and so do the ranks that it has
Spark or Ray start.
"""

from hvd_keras._common import horovod_site

horovod_site.use()
