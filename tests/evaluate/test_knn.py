import math

import pytest
import torch

from flexpredict.evaluate.knn import knn_accuracy


def _direct(
    train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, k: int, temperature: float
) -> list[int]:
    """One query and one neighbour at a time."""
    answers = []
    for query in test:
        scores = []
        for feature, label in zip(train, labels.tolist(), strict=True):
            cosine = float(query @ feature / (query.norm() * feature.norm()))
            scores.append((cosine, label))
        votes: dict[int, float] = {}
        for cosine, label in sorted(scores, reverse=True)[:k]:
            votes[label] = votes.get(label, 0.0) + math.exp(cosine / temperature)
        answers.append(max(votes, key=lambda label: votes[label]))
    return answers


@pytest.mark.parametrize(("test_chunk", "train_chunk"), [(1000, 1000), (7, 13), (1, 5)])
def test_knn__equals_a_direct_computation(test_chunk: int, train_chunk: int) -> None:
    torch.manual_seed(0)
    train, test = torch.randn(90, 6), torch.randn(40, 6)
    labels, truth = torch.randint(5, (90,)), torch.randint(5, (40,))
    answers = torch.tensor(_direct(train, labels, test, 10, 0.07))
    accuracy = knn_accuracy(
        train, labels, test, truth, neighbours=10, test_chunk=test_chunk, train_chunk=train_chunk
    )
    assert accuracy == pytest.approx(100 * float((answers == truth).double().mean()))


def test_knn__scale_does_not_matter_and_far_apart_classes_are_told_apart() -> None:
    torch.manual_seed(0)
    labels = torch.arange(200) % 4
    features = 10 * torch.eye(4)[labels] + 0.1 * torch.randn(200, 4)
    scaled = features * torch.rand(200, 1).add(0.1)
    assert knn_accuracy(features[:100], labels[:100], scaled[100:], labels[100:]) == 100


def test_knn__too_many_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="20 neighbours were asked for, but there are 5"):
        knn_accuracy(torch.randn(5, 2), torch.zeros(5).long(), torch.randn(1, 2), torch.zeros(1))
