"""What a source is, for whoever has to know whether it is the same as before."""

import hashlib
import json

import numpy as np

from flexpredict.data.sources.base import Source


def identity(source: Source) -> str:
    """A digest that is equal only for the same images with the same labels."""
    digest = hashlib.sha256()
    if (stamp := source.stamp()) is not None:
        digest.update(stamp.encode())
    else:
        digest.update(contents(source).encode())
    if source.labels is not None:
        digest.update(json.dumps(class_names(source)).encode())
        digest.update(source.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def contents(source: Source) -> str:
    """A digest of every image."""
    digest = hashlib.sha256()
    for index in range(len(source)):
        data = source.read(index)
        shape = data.shape if isinstance(data, np.ndarray) else (len(data),)
        digest.update(f"{shape}".encode())
        digest.update(data.tobytes() if isinstance(data, np.ndarray) else data)
    return digest.hexdigest()


def class_names(source: Source) -> list[str]:
    """Of a labelled source; numbers where it has no names."""
    assert source.labels is not None
    return source.classes or [str(number) for number in range(int(source.labels.max()) + 1)]
