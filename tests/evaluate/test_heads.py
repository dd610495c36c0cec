from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexpredict.data.sources import open_source
from flexpredict.evaluate.features import extract
from flexpredict.evaluate.heads import Head, Heads, lars_update
from flexpredict.evaluate.linear import PROTOCOLS, JointHeads, Schedule, grid, train_heads
from flexpredict.model.vit import create_encoder

DATA = Path(__file__).parents[3] / "shared" / "data"


def test_lars__equals_the_released_steps(vectors: dict[str, dict[str, np.ndarray]]) -> None:
    given = {name: torch.from_numpy(value) for name, value in vectors["lars"].items()}
    weight, bias = given["weight0"].clone(), given["bias0"].clone()
    decay, momentum = (float(given[name]) for name in ("weight_decay", "momentum"))
    rate = given["lr"]
    velocities = torch.zeros_like(weight), torch.zeros_like(bias)
    for step in range(6):
        gradient = given["weight_grads"][step] + decay * weight
        lars_update(weight, gradient, velocities[0], rate, momentum, adapt=True)
        lars_update(bias, given["bias_grads"][step], velocities[1], rate, momentum, adapt=False)
        torch.testing.assert_close(weight, given["weights"][step], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(bias, given["biases"][step], rtol=1e-6, atol=1e-7)


class _Naive:
    """One head the plain way: modules, autograd, torch's own optimiser."""

    def __init__(self, head: Head, heads: Heads, place: int) -> None:
        classes, width = heads.weight.shape[1:]
        linear = nn.Linear(width, classes)
        linear.weight.data = heads.weight[place].clone()
        linear.bias.data = heads.bias[place].clone()
        self.norm = nn.BatchNorm1d(width) if head.batch_norm else nn.Identity()
        self.linear = linear
        self.groups = [
            {"params": list(linear.parameters()), "weight_decay": head.weight_decay},
            {"params": list(self.norm.parameters()), "weight_decay": 0.0},
        ]
        self.head = head
        groups = self.groups[: 1 + head.batch_norm]
        self.optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)

    def step(self, features: torch.Tensor, labels: torch.Tensor, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.head.lr * lr
        loss = F.cross_entropy(self.linear(self.norm(features)), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def _compare(features: torch.Tensor, labels: torch.Tensor, dim: int, classes: int) -> None:
    """Step by step, head by head, through a fall of the learning rate; then in eval mode."""
    heads = PROTOCOLS["vissl-sgd"].heads + grid((0.1, 0.003), (5e-4, 0.0))
    joint = JointHeads(heads, dim, classes, seed=0)
    pairs = [
        (group, place, _Naive(head, group, place))
        for group in joint.groups
        for place, head in enumerate(group.heads)
    ]
    schedule = Schedule(4, milestones=(2,))
    for step in range(4 * 7):
        rows = torch.arange(step * 250, (step + 1) * 250) % len(labels)
        lr = schedule.factor(step // 7)
        batch, known = features[rows], labels[rows]
        joint.step(batch, known, lr)
        for group, place, naive in pairs:
            naive.step(joint._of(group, batch), known, lr)
            ours, theirs = group.weight[place], naive.linear.weight.detach()
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for group, place, naive in pairs:
        naive.norm.eval()
        with torch.no_grad():
            plain = naive.linear(naive.norm(joint._of(group, features)))
        answers = group.predict(joint._of(group, features))[place]
        assert (answers == plain.argmax(1)).float().mean() > 0.999


def test_heads__equal_naive_ones_on_random_features() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(500, 4 * 12) * 3 + 1, torch.randint(5, (500,))
    _compare(features, labels, 12, 5)


def test_heads__equal_naive_ones_on_tiny_imagenet() -> None:
    path = DATA / "tiny-imagenet-200.partA.npz"
    if not path.exists():
        pytest.skip("the Tiny-ImageNet sample of ../shared/data is not here")
    encoder = create_encoder("vit_nano", patch_size=16, image_size=64).eval()
    source = open_source(f"{path}:train")
    rows = np.arange(2000)
    features = extract(encoder, source, layers=4, rows=rows)
    assert source.labels is not None
    labels = torch.from_numpy(source.labels[rows])
    _compare(features, labels, encoder.dim, int(labels.max()) + 1)


def test_schedule__falls_as_published() -> None:
    vissl = PROTOCOLS["vissl-sgd"].schedule
    factors = [round(vissl.factor(epoch), 9) for epoch in (0, 7, 8, 15, 16, 23, 24, 27)]
    assert factors == [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    cosine = Schedule(50, cosine_to=0.01)  # CLEVR: 0.01 -> 1e-4
    assert cosine.factor(0) == 1
    assert cosine.factor(25) == pytest.approx(0.505)
    assert cosine.factor(50) == pytest.approx(0.01)
    assert len(PROTOCOLS["vissl-lars"].heads) == 16
    assert len(PROTOCOLS["vissl-sgd"].heads) == 4
    assert len(PROTOCOLS["default"].heads) >= 24


def test_train_heads__reach_known_separability_and_chance() -> None:
    """Two Gaussian classes: the best linear rule is known; on random labels it is chance."""
    torch.manual_seed(0)
    count, distance = 4000, 2.0
    labels = torch.randint(2, (2, count))
    features = torch.randn(2, count, 8)
    features[..., 0] += distance * (labels - 0.5)
    best = 50 * (1 + float(torch.erf(torch.tensor(distance / 2 / 2**0.5))))
    room = 5 * (best * (100 - best) / count) ** 0.5
    chance = labels[:, torch.randperm(count)]
    heads = grid((0.03, 0.3), (0.0, 5e-4), layers=(1,))

    def trained(known: torch.Tensor) -> list[float]:
        def epochs(_epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return list(zip(features[0].split(250), known[0].split(250), strict=True))

        schedule = Schedule(10, (6,))
        joint = train_heads(heads, epochs, schedule=schedule, batch_size=250, dim=8, classes=2)
        return joint.accuracies([(features[1], known[1])])

    for accuracy in trained(labels):
        assert abs(accuracy - best) < room
    for accuracy in trained(chance):
        assert abs(accuracy - 50) < 5 * (2500 / count) ** 0.5
