"""A look at the features while they are learnt: nearest neighbours and ridge on labelled images."""

import torch

from flexpredict.data.sources import MemorySource, Source
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.data.transforms import Transform, read_images
from flexpredict.evaluate.features import extract
from flexpredict.evaluate.knn import knn_accuracy
from flexpredict.evaluate.labels import held_out
from flexpredict.evaluate.ridge import ridge_probe
from flexpredict.evaluate.tasks import labels_of
from flexpredict.model.vit import Encoder

_MOST = 10_000  # images that are looked at: some seconds on a GPU
_TEST_SHARE = 0.25
_NEIGHBOURS = 20


class OnlineProbe:
    """Test accuracies of an encoder on a labelled set, a part of which is held out for the test.

    The images are read once, and kept at the encoder's size.
    """

    def __init__(self, source: Source, size: tuple[int, int], channels: int = 3) -> None:
        labels = labels_of(source, "the data of the online probe")
        if len(source) > _MOST:
            _, some = held_out(labels, _MOST / len(source))
            source, labels = SubsetSource(source, some), labels[some]
        images = read_images(source, range(len(source)), size, Transform(), channels)
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        train, test = held_out(labels, _TEST_SHARE)
        if not len(test):
            raise ValueError(
                "the data of the online probe has one image per class, so none is left to test "
                "on: give at least two of some class"
            )
        self._train, self._test = MemorySource(pixels[train]), MemorySource(pixels[test])
        self._train_labels = torch.from_numpy(labels[train])
        self._test_labels = torch.from_numpy(labels[test])

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        train, test = extract(encoder, self._train), extract(encoder, self._test)
        labels = self._train_labels, self._test_labels
        neighbours = min(_NEIGHBOURS, len(train))
        return {
            "knn": knn_accuracy(train, labels[0], test, labels[1], neighbours=neighbours),
            "ridge": ridge_probe(train, labels[0], test, labels[1]).accuracy,
        }
