"""The embedded tasks: count the objects, place the nearest, name the largest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flexpredict.data.scenes import TASKS
from flexpredict.data.sources import MemorySource, Progress
from flexpredict.data.sources.scenes import scenes
from flexpredict.evaluate.features import extract
from flexpredict.evaluate.ridge import ridge_probe
from flexpredict.model.vit import Encoder


@dataclass(frozen=True, slots=True)
class SceneTasks:
    """Scenes to fit probes on and scenes to test them on, with the labels of every task."""

    train: MemorySource
    test: MemorySource
    train_labels: dict[str, Tensor]
    test_labels: dict[str, Tensor]

    @classmethod
    def open(
        cls, train: int, test: int, size: int, progress: Progress | None = None
    ) -> "SceneTasks":
        train_images, train_labels = scenes("scenes", count=train, size=size, progress=progress)
        test_images, test_labels = scenes("scenes-test", count=test, size=size, progress=progress)
        return cls(
            MemorySource(train_images),
            MemorySource(test_images),
            {task: torch.from_numpy(labels) for task, labels in train_labels.items()},
            {task: torch.from_numpy(labels) for task, labels in test_labels.items()},
        )

    def probe(self, encoder: Encoder) -> dict[str, float]:
        """Test accuracy of every task, in percent, on frozen features."""
        train, test = extract(encoder, self.train), extract(encoder, self.test)
        return {
            task: ridge_probe(train, self.train_labels[task], test, self.test_labels[task]).accuracy
            for task in TASKS
        }

    def majority(self) -> dict[str, float]:
        """The share of the most frequent class in the test set, in percent."""
        return {
            task: 100 * float(torch.bincount(labels).max()) / len(labels)
            for task, labels in self.test_labels.items()
        }
