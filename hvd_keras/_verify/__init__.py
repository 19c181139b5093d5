"""`hvdrun --verify`: N ranks against one process, for the user's own script.

Each process of the two jobs records what it does (`recorder`, hooked into Keras
and the reducer by `hooks`); `compare` reads the records of both and says
whether they are equal, and `causes` why not. In the hvd_keras of all other jobs
nothing of this package is imported.
"""
