"""What the examples share: two flags, shares of a batch, who prints."""

from __future__ import annotations

from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS


def define_flags(*, epochs: int, batch_size: int) -> None:
    """Defines `--epochs` and `--batch_size` with these defaults."""
    flags.DEFINE_integer(
        "epochs", epochs, "Passes over the data.", lower_bound=1
    )
    flags.DEFINE_integer(
        "batch_size",
        batch_size,
        "Rows of a batch, over all processes.",
        lower_bound=1,
    )


def batch_size_of_rank() -> int:
    """Returns how many rows of each batch a rank has."""
    rows, rest = divmod(FLAGS.batch_size, hvd.size())
    if rest:
        raise app.UsageError(
            "--batch_size must be a multiple of the number of processes. "
            f"Received: --batch_size={FLAGS.batch_size}, {hvd.size()} "
            "processes."
        )
    return rows


def say(text: str) -> None:
    """Prints a line on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)
