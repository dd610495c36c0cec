"""Weighted nearest neighbours: a classifier without training, for sets of millions."""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.inference_mode()
def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    neighbours: int = 20,
    temperature: float = 0.07,
    test_chunk: int = 4096,
    train_chunk: int = 65_536,
) -> float:
    """Test accuracy in percent: cosine similarity, votes weighted by exp(similarity / temperature).

    Features (n, D), labels 0, 1, … (n,). Memory is bounded by the two chunk sizes.
    """
    if neighbours > len(train):
        raise ValueError(f"{neighbours} neighbours were asked for, but there are {len(train)}")
    classes, right = int(train_labels.max()) + 1, 0
    for start in range(0, len(test), test_chunk):
        part = F.normalize(test[start : start + test_chunk].float(), dim=1)
        similarity, place = nearest(part, train, neighbours, train_chunk)
        weight = ((similarity - 1) / temperature).exp()
        votes = weight.new_zeros(len(part), classes)
        votes.scatter_add_(1, train_labels.to(part.device)[place], weight)
        truth = test_labels[start : start + test_chunk].to(part.device)
        right += int((votes.argmax(1) == truth).sum())
    return 100 * right / len(test)


def nearest(
    queries: Tensor, train: Tensor, neighbours: int, train_chunk: int
) -> tuple[Tensor, Tensor]:
    """Similarity and index of the nearest of each query, (n, neighbours); queries have norm 1.

    The training set is read chunk by chunk, and only the best so far are kept.
    """
    best = queries.new_full((len(queries), 0), -torch.inf)
    places = best.long()
    for start in range(0, len(train), train_chunk):
        part = F.normalize(train[start : start + train_chunk].float(), dim=1).to(queries.device)
        similarity = queries @ part.T
        found, place = similarity.topk(min(neighbours, len(part)), dim=1)
        best, places = torch.cat([best, found], 1), torch.cat([places, place + start], 1)
        best, order = best.topk(min(neighbours, best.shape[1]), dim=1)
        places = places.gather(1, order)
    return best, places
