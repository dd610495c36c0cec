"""End-to-end fine-tuning of an encoder on labelled images.

The data of a step, and every random number in it, are functions of (seed, epoch, image) or of
(seed, step): the same seed gives the same result, whatever the number of workers.
"""

import copy
import math
import shutil
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from flexpredict.data.cores import usable_cores
from flexpredict.data.loader import Order
from flexpredict.data.random import Stream, seed_from
from flexpredict.data.sources import Progress, Source
from flexpredict.engine import checkpoint, precision
from flexpredict.evaluate.features import size_for
from flexpredict.evaluate.finetune_data import (
    TEST_CHUNK,
    Batch,
    TestBatches,
    TrainingBatches,
    load,
)
from flexpredict.evaluate.finetune_settings import PRESETS, FinetuneSettings, Pooling
from flexpredict.evaluate.labels import match_labels
from flexpredict.evaluate.mixing import erase, mix, smooth_labels
from flexpredict.model.blocks import NORM_EPS, set_drop_path
from flexpredict.model.vit import Encoder
from flexpredict.notice import Notice

__all__ = ["PRESETS", "Classifier", "FinetuneResult", "FinetuneSettings", "finetune"]

_FINETUNING = 1000  # part of the key: pretraining with the same seed sees other numbers
_MANY_IMAGES = 5_000  # from here on, workers are worth their start on a CPU too


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """Test accuracies in percent.

    `accuracy` is that of the last epoch, which nobody chose. `best_accuracy` is the highest of all
    epochs, chosen on the test set itself; it is what MAE's script prints as max accuracy.
    """

    accuracy: float
    best_accuracy: float
    best_epoch: int  # the first of them, counted from 1
    accuracies: dict[int, float]  # of every epoch that was tested, counted from 1
    losses: list[float]  # training loss, mean of each epoch
    classes: list[str]
    seconds: float
    model: "Classifier"  # as after the last epoch


class Classifier(nn.Module):
    """A copy of an encoder, ready to be trained, and a linear head."""

    def __init__(
        self,
        encoder: Encoder,
        classes: int,
        pooling: Pooling = "norm-mean",
        *,
        head_init_std: float = 2e-5,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_(name not in encoder.fixed)
        self.norm: nn.Module = nn.Identity()
        if pooling == "mean-norm":
            self.encoder.norm = nn.Identity()  # type: ignore[assignment]
            self.norm = nn.LayerNorm(encoder.dim, eps=NORM_EPS)
        self.head = nn.utils.skip_init(nn.Linear, encoder.dim, classes)
        nn.init.normal_(self.head.weight, std=head_init_std, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Scores (B, classes) of images (B, c, H, W), uint8 or normalised."""
        return self.head(self.norm(self.encoder(images).mean(1)))


# Position tables, class tokens and, of BEiT, shared distances, where they are trained.
_TOKENS = "encoder.model."


def layer_of(name: str, depth: int) -> int:
    """The layer of a classifier's parameter: 0 what makes tokens, 1 … L blocks, L + 1 the rest."""
    if name.startswith(("encoder.patch_embed.", _TOKENS)):
        return 0
    if name.startswith("encoder.blocks."):
        return int(name.split(".")[2]) + 1
    return depth + 1


def parameter_groups(
    model: Classifier, *, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Groups by layer and by weight decay, each with the `scale` of its learning rate.

    Layer i learns at layer_decay^(L + 1 − i) of the rate; vectors are not decayed (spec 3.4), nor
    are position tables and tokens, as in MAE.
    """
    depth = len(model.encoder.blocks)
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer, decayed = layer_of(name, depth), parameter.ndim > 1 and not name.startswith(_TOKENS)
        group = groups.setdefault(
            (layer, decayed),
            {
                "params": [],
                "scale": layer_decay ** (depth + 1 - layer),
                "weight_decay": weight_decay if decayed else 0.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def learning_rate(settings: FinetuneSettings, step: int, steps_per_epoch: int) -> float:
    """The rate of a step, counted from 0: straight up from 0, then a cosine down to min_lr."""
    epoch, peak, warmup = step / steps_per_epoch, settings.peak_lr, settings.warmup_epochs
    if epoch < warmup:
        return peak * epoch / warmup
    progress = (epoch - warmup) / (settings.epochs - warmup)
    return settings.min_lr + (peak - settings.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def finetune(
    encoder: Encoder,
    train: Source,
    test: Source,
    settings: FinetuneSettings,
    *,
    device: torch.device | str,
    train_rows: NDArray[np.int64] | None = None,
    workers: int | None = None,
    test_every: int = 1,
    kept: Path | None = None,
    progress: Progress | None = None,
) -> FinetuneResult:
    """Trains a copy of the encoder with a linear head on it; the encoder given stays as it is.

    train_rows: the images of `train` to use, where not all. test_every: epochs from one test to
    the next; the last epoch is always tested. kept: a folder for checkpoints of whole epochs, from
    which the same call goes on; it is the caller's to remove. progress: told of steps.
    """
    started, device = time.monotonic(), torch.device(device)
    train_labels, test_labels, classes = match_labels(train, test)
    rows = np.arange(len(train)) if train_rows is None else np.asarray(train_rows)
    seed = seed_from(settings.seed, _FINETUNING)
    size = size_for(encoder)
    order = Order(len(rows), settings.batch_size, seed)
    batches = TrainingBatches(train, train_labels, rows, order, settings, encoder, size)
    if workers is None:
        few = device.type == "cpu" and len(rows) < _MANY_IMAGES
        workers = 0 if few or usable_cores() == 1 else min(8, usable_cores())

    model = Classifier(
        encoder,
        len(classes),
        settings.pooling,
        head_init_std=settings.head_init_std,
        generator=_generator(seed, Stream.ENCODER),
    )
    set_drop_path(model.encoder, settings.drop_path)
    model.to(device)
    groups = parameter_groups(
        model, weight_decay=settings.weight_decay, layer_decay=settings.layer_decay
    )
    optimizer = torch.optim.AdamW(
        groups, lr=settings.peak_lr, betas=settings.betas, fused=device.type in ("cpu", "cuda")
    )
    dtype = precision.compute_dtype(settings.precision, device)
    scaler = precision.grad_scaler(device, dtype)

    per_epoch = order.steps_per_epoch
    steps = settings.epochs * per_epoch
    accuracies: dict[int, float] = {}
    losses: list[float] = []
    total = torch.zeros((), device=device)
    begun, spent, due = 0, 0.0, 0.0
    if kept is not None and (before := _before(kept, model, optimizer)) is not None:
        begun, spent, losses = before["step"], before["seconds"], before["losses"]
        accuracies = {int(epoch): value for epoch, value in before["accuracies"].items()}
        scaler.load_state_dict(before["scaler"])
    # Drop path draws from torch's global generator: it gets a key, and is handed back as it was.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for step, batch in enumerate(load(batches, range(begun, steps), workers), begun):
            model.train()
            torch.manual_seed(seed_from(seed, Stream.NOISE, step))
            rate = learning_rate(settings, step, per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            images, shares = _prepare(batch, model, settings, seed, step, len(classes))
            parts = zip(
                images.chunk(settings.accumulate), shares.chunk(settings.accumulate), strict=True
            )
            for part, share in parts:
                with precision.autocast(device, dtype):
                    loss = F.cross_entropy(model(part).float(), share) / settings.accumulate
                scaler.scale(loss).backward()
                total += loss.detach()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if progress is not None:
                progress(step + 1, steps)
            epoch, within = divmod(step + 1, per_epoch)
            if within == 0:
                losses.append(float(total) / per_epoch)
                total.zero_()
                if not math.isfinite(losses[-1]):
                    raise FloatingPointError(
                        f"the loss of epoch {epoch} is {losses[-1]}: fine-tune with a lower lr"
                    )
                if epoch % test_every == 0 or epoch == settings.epochs:
                    views = TestBatches(test, encoder.in_channels, size, settings.test_margin)
                    with precision.autocast(device, dtype):
                        accuracies[epoch] = _accuracy(model, views, test_labels, workers)
                last = step + 1 == steps
                if kept is not None and due < math.inf and (last or time.monotonic() > due):
                    state = {
                        "losses": losses,
                        "accuracies": accuracies,
                        "scaler": scaler.state_dict(),
                        "seconds": spent + time.monotonic() - started,
                    }
                    due = _keep(kept, step + 1, model, optimizer, state)
    best = max(accuracies, key=lambda epoch: accuracies[epoch])
    return FinetuneResult(
        accuracy=accuracies[settings.epochs],
        best_accuracy=accuracies[best],
        best_epoch=best,
        accuracies=accuracies,
        losses=losses,
        classes=classes,
        seconds=spent + time.monotonic() - started,
        model=model.eval(),
    )


def _before(
    kept: Path, model: Classifier, optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """What an interrupted one had, if it can still be read."""
    try:
        return checkpoint.restore(kept, model, optimizer)
    except ValueError as error:
        warnings.warn(f"fine-tuning begins anew: {error}", Notice, stacklevel=3)
        shutil.rmtree(kept)
        return None


def _keep(
    kept: Path,
    step: int,
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> float:
    """When the next is due: saving takes at most a twentieth of the time. Never, if it fails."""
    start = time.monotonic()
    try:
        checkpoint.save(kept, step, model, optimizer, state, keep=1)
    except OSError as error:  # as on a full disk: what is trained is not lost yet
        said = f"{kept} takes no checkpoint, so that a stop would cost all: {error}"
        warnings.warn(said, Notice, stacklevel=3)
        return math.inf
    end = time.monotonic()
    return end + 20 * (end - start)


def _prepare(
    batch: Batch,
    model: Classifier,
    settings: FinetuneSettings,
    seed: int,
    step: int,
    classes: int,
) -> tuple[Tensor, Tensor]:
    """What is left to do on the device: normalise, erase, smooth, mix."""
    device = model.head.weight.device
    images = model.encoder.normalise(batch.images.to(device, non_blocking=True))
    if settings.random_erasing:
        generator = _generator(seed, Stream.AUGMENT, step, device=device)
        images = erase(images, batch.boxes.to(device, non_blocking=True), generator)
    labels = batch.labels.to(device, non_blocking=True)
    shares = smooth_labels(labels, classes, settings.label_smoothing)
    rng = np.random.default_rng(seed_from(seed, Stream.AUGMENT, step))
    return mix(images, shares, rng, mixup=settings.mixup, cutmix=settings.cutmix)


@torch.inference_mode()
def _accuracy(
    model: Classifier, views: TestBatches, labels: NDArray[np.int64], workers: int
) -> float:
    model.eval()
    device = model.head.weight.device
    chunks = range(math.ceil(len(labels) / TEST_CHUNK))
    found = [
        model(batch.images.to(device, non_blocking=True)).argmax(1).cpu()
        for batch in load(views, chunks, workers)
    ]
    return 100 * float((torch.cat(found).numpy() == labels).mean())


def _generator(*key: int, device: torch.device | None = None) -> torch.Generator:
    return torch.Generator(device or "cpu").manual_seed(seed_from(*key))
