"""Real images for the examples, without a download."""

from __future__ import annotations

import gzip
import pathlib

import numpy as np

NAMES = ("digits", "fashion-mnist")
FASHION_MNIST_DIR = "/usr/share/datasets/fashion-mnist"

Images = tuple[np.ndarray, np.ndarray]  # float32 (n, h, w, 1), int32 labels


def load(name: str, data_dir: str = FASHION_MNIST_DIR) -> tuple[Images, Images]:
    """Returns images and labels for training, and those for the test."""
    if name == "digits":
        return _digits()
    return _fashion_mnist(pathlib.Path(data_dir))


def _digits() -> tuple[Images, Images]:
    """1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = (data.images / 16.0).astype(np.float32)[..., None]
    labels = data.target.astype(np.int32)
    # A fifth is for the test, the same in every process.
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [len(order) // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def _fashion_mnist(data_dir: pathlib.Path) -> tuple[Images, Images]:
    """70,000 pieces of clothing of 28 x 28 pixels, packaged by Debian."""
    parts: list[Images] = []
    for part in ("train", "t10k"):
        images = _read_idx(data_dir / f"{part}-images-idx3-ubyte.gz")
        labels = _read_idx(data_dir / f"{part}-labels-idx1-ubyte.gz")
        scaled = images.astype(np.float32)[..., None] / 255.0
        parts.append((scaled, labels.astype(np.int32)))
    return parts[0], parts[1]


def _read_idx(path: pathlib.Path) -> np.ndarray:
    """Reads MNIST's format: magic, number of dimensions, dimensions, bytes."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} must exist: `apt-get install dataset-fashion-mnist`, or "
            "pass `--data_dir`."
        )
    content = gzip.decompress(path.read_bytes())
    num_dimensions = content[3]
    header = 4 + 4 * num_dimensions
    shape = np.frombuffer(content[4:header], ">u4").astype(int)
    return np.frombuffer(content[header:], np.uint8).reshape(shape)
