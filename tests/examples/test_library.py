"""StoP inside training code that is not ours, in at most five changed lines."""

import difflib
import importlib
import inspect
import runpy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flexpredict as fp
from flexpredict import StochasticPositions

EXAMPLES = Path(__file__).parents[2] / "examples"


def _changed(one: str, other: str) -> int:
    """Lines of code that are new or not the same; documentation does not count."""
    lines = [text.split('"""', 2)[-1].splitlines() for text in (one, other)]
    found = difflib.unified_diff(*lines, lineterm="", n=0)
    return sum(1 for line in found if line.startswith("+") and not line.startswith("+++"))


class PlainMae(nn.Module):
    """"""

    def __init__(self, pixels: int, patches: int, dim: int = 32, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(pixels, dim)
        self.encoder = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True)
        self.projection = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.TransformerEncoderLayer(width, 4, 32, 0.0, batch_first=True)
        self.head = nn.Linear(width, pixels)
        self.seen_at = nn.Parameter(torch.randn(patches, dim))
        self.asked_at = nn.Parameter(torch.randn(patches, width))

    def forward(self, patches: Tensor, seen: Tensor, hidden: Tensor) -> Tensor:
        features = self.encoder((self.embed(patches) + self.seen_at)[:, seen])
        context = self.projection(features) + self.asked_at[seen]
        masked = (self.mask_token + self.asked_at[hidden]).expand(len(patches), -1, -1)
        decoded = self.decoder(torch.cat([context, masked], 1))[:, len(seen) :]
        return (self.head(decoded) - patches[:, hidden]).square().mean()


class StopMae(nn.Module):
    """"""

    def __init__(self, pixels: int, patches: int, dim: int = 32, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(pixels, dim)
        self.encoder = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True)
        self.projection = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.TransformerEncoderLayer(width, 4, 32, 0.0, batch_first=True)
        self.head = nn.Linear(width, pixels)
        self.seen_at = nn.Parameter(torch.randn(patches, dim))
        self.asked_at = nn.Parameter(torch.randn(patches, width))
        self.stop = StochasticPositions(dim, width, noise_std=0.25)

    def forward(self, patches: Tensor, seen: Tensor, hidden: Tensor) -> Tensor:
        features = self.encoder((self.embed(patches) + self.seen_at)[:, seen])
        context = self.projection(features) + self.asked_at[seen]
        places = self.asked_at[hidden].expand(len(patches), -1, -1)
        masked = self.stop.masked(places, self.projection, self.mask_token)
        decoded = self.decoder(torch.cat([context, masked], 1))[:, len(seen) :]
        return (self.head(decoded) - patches[:, hidden]).square().mean()


def test_plain_mae() -> None:
    one, other = inspect.getsource(PlainMae), inspect.getsource(StopMae)
    assert _changed(one, other.replace("StopMae", "PlainMae")) == 3
    torch.manual_seed(0)
    patches, order = torch.randn(4, 9, 12), torch.randperm(9)
    plain, stop = PlainMae(12, 9), StopMae(12, 9)
    stop.load_state_dict(plain.state_dict())  # StoP has no weights of its own
    stop.stop = StochasticPositions(32, 16, noise_std=0.0)
    assert torch.equal(plain(patches, order[:3], order[3:]), stop(patches, order[:3], order[3:]))
    stop.stop = StochasticPositions(32, 16, noise_std=0.25)
    stop(patches, order[:3], order[3:]).backward()
    assert stop.projection.weight.grad is not None
    one_loss, two_loss = (stop(patches, order[:3], order[3:]) for _ in range(2))
    assert not torch.equal(one_loss, two_loss)


def test_minimal_ijepa() -> None:
    one, other = ((EXAMPLES / f"minimal_{x}.py").read_text() for x in ("ijepa", "stop"))
    assert _changed(one, other) == 4
    code = one[one.index("class IJepa") : one.index("\n\ndef train")].splitlines()
    assert len(code) <= 30
    torch.manual_seed(0)
    patches = torch.randn(64, 1, 48).expand(-1, 16, -1) + 0.1 * torch.randn(64, 16, 48)
    for name in ("ijepa", "stop"):
        train = runpy.run_path(str(EXAMPLES / f"minimal_{name}.py"))["train"]
        torch.manual_seed(0)
        model, losses = train(patches, (4, 4), steps=30)
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        assert hasattr(model, "stop") == (name == "stop")


def test_hugging_face_mae() -> None:
    transformers = importlib.import_module("transformers")
    add_stop = runpy.run_path(str(EXAMPLES / "stop_in_huggingface_mae.py"))["add_stop"]
    code = inspect.getsource(add_stop).split('"""')[2].strip().splitlines()
    assert len([line for line in code if not line.strip().startswith("#")]) == 5
    config = transformers.ViTMAEConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
        decoder_intermediate_size=32, image_size=32, patch_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ViTMAEForPreTraining(config)
    images, order = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    before = model(images, noise=order).loss
    tokens: list[Tensor] = []

    def look(_: Any, given: Any) -> None:
        tokens.append(given[0].detach())

    with torch.no_grad():  # an A that is large enough to be seen, and to be told from others
        model.decoder.decoder_embed.weight.normal_()
    model.decoder.decoder_layers[0].register_forward_pre_hook(look)
    plain = model(images, noise=order)
    add_stop(model, noise_std=0.0)
    assert torch.equal(model(images, noise=order).loss, plain.loss)
    assert not torch.equal(before, plain.loss)
    add_stop(model, noise_std=0.5)
    model.decoder.decoder_layers[0].register_forward_pre_hook(look)
    hidden = torch.nn.functional.pad(plain.mask, (1, 0)) > 0
    start, noise = tokens[0], []
    for _ in range(400):
        tokens.clear()
        model(images, noise=order)
        change = tokens[-1] - start
        assert torch.equal(change[~hidden], torch.zeros_like(change[~hidden]))
        noise.append(change[hidden])
    drawn = torch.cat(noise).double()
    a = model.decoder.decoder_embed.weight.double()
    wanted = 0.25 * a @ a.T
    error = (wanted.square() + wanted.diag().outer(wanted.diag())).sqrt() / len(drawn) ** 0.5
    assert bool(((drawn.T @ drawn / len(drawn) - wanted).abs() < 5 * error).all())


def test_masks__on_their_own(tmp_path: Path) -> None:
    """Indices of patches for anybody's model, and a picture of how often each is seen."""
    samplers = {"even": fp.EvenMasks((6, 9)), "random": fp.RandomMasks((6, 9), mask_ratio=0.5)}
    masks = samplers["even"].sample(5, torch.Generator().manual_seed(0))
    for context, targets in zip(masks.context, masks.targets, strict=True):
        assert not set(context.tolist()) & set(targets.flatten().tolist())
    figure = fp.draw_coverage(samplers)
    figure.savefig(tmp_path / "masks.png")
    assert (tmp_path / "masks.png").stat().st_size > 1000
