import math
import resource
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flexpredict.data.sources import FolderSource, MemorySource
from flexpredict.evaluate.finetune import (
    PRESETS,
    Classifier,
    FinetuneSettings,
    finetune,
    learning_rate,
    parameter_groups,
)
from flexpredict.evaluate.labels import match_labels
from flexpredict.model.blocks import Block, drop_path, set_drop_path
from flexpredict.model.vit import Encoder, create_encoder
from flexpredict.notice import Notice

# A few short epochs for vit_nano on 16-px images.
QUICK = FinetuneSettings(
    epochs=4,
    batch_size=16,
    lr=3e-3,
    warmup_epochs=1,
    randaugment=False,
    crop_scale=(0.5, 1.0),
    test_margin=1.0,
)
EVERYTHING: dict[str, Any] = {
    "randaugment": True,
    "mixup": 0.8,
    "cutmix": 1.0,
    "random_erasing": 0.25,
    "drop_path": 0.2,
    "pooling": "mean-norm",
    "test_margin": 256 / 224,
}


def _encoder(channels: int = 3) -> Encoder:
    torch.manual_seed(0)
    return create_encoder("vit_nano", patch_size=8, image_size=16, in_channels=channels).eval()


def _set(count: int, seed: int, channels: int = 3) -> MemorySource:
    """Stripes that lie or stand, at any phase and in any colours: no mean of pixels tells them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = np.empty((count, 16, 16, channels), np.uint8)
    for image, label in zip(images, labels, strict=True):
        wave = (np.arange(16) + rng.integers(8)) // 4 % 2
        low, high = rng.integers(0, 100, channels), rng.integers(156, 256, channels)
        image[:] = np.where(wave[:, None], low, high)[:, None]
        if label:
            image[:] = image.transpose(1, 0, 2).copy()
    return MemorySource(images, labels)


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [  # spec 3.4
        ("ijepa-1%-l16", {"lr": 3e-5, "peak": 3e-5, "weight_decay": 0.05}),
        ("ijepa-1%-l16-per-256", {"lr_per_256": 3e-5, "peak": 6e-5, "weight_decay": 0.05}),
        ("ijepa-1%-h14", {"lr": 3e-5, "peak": 3e-5, "weight_decay": 0.4}),
        ("ijepa-1%-h14-per-256", {"lr_per_256": 3e-5, "peak": 6e-5, "weight_decay": 0.4}),
    ],
)
def test_presets__one_percent(name: str, numbers: dict[str, float]) -> None:
    preset = asdict(PRESETS[name]) | {"peak": PRESETS[name].peak_lr}
    expected = numbers | {
        "epochs": 50,
        "batch_size": 512,
        "betas": (0.9, 0.999),
        "layer_decay": 0.75,
        "warmup_epochs": 5,
        "min_lr": 1e-6,
        "label_smoothing": 0.1,
        "randaugment": "rand-m9-mstd0.5-inc1",
        "crop_scale": (0.08, 1.0),
        "flip": True,
        "mixup": 0,
        "cutmix": 0,
        "random_erasing": 0,
        "drop_path": 0,
        "head_init_std": 2e-5,
        "test_margin": 256 / 224,
        "pooling": "norm-mean",
    }
    assert {key: preset[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "epochs", "lr_per_256", "batch", "layer_decay", "drop_path", "weight_decay"),
    [  # spec 3.4
        ("mae-b16", 100, 5e-4, 1024, 0.65, 0.1, 0.05),
        ("mae-l16", 50, 1e-3, 1024, 0.75, 0.2, 0.05),
        ("mae-h14", 50, 1e-3, 1024, 0.75, 0.3, 0.05),
        ("ijepa-full-h16-448", 50, 1e-4, 528, 0.75, 0.25, 0.04),
    ],
)
def test_presets__all_labels(
    name: str,
    epochs: int,
    lr_per_256: float,
    batch: int,
    layer_decay: float,
    drop_path: float,
    weight_decay: float,
) -> None:
    preset = PRESETS[name]
    assert (preset.epochs, preset.lr_per_256, preset.batch_size) == (epochs, lr_per_256, batch)
    assert preset.peak_lr == pytest.approx(lr_per_256 * batch / 256)
    assert (preset.layer_decay, preset.drop_path) == (layer_decay, drop_path)
    assert preset.weight_decay == weight_decay
    assert (preset.mixup, preset.cutmix) == (0.8, 1.0)
    assert preset.pooling == ("mean-norm" if name.startswith("mae") else "norm-mean")


def test_settings__what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="either lr or lr_per_256"):
        FinetuneSettings(epochs=10, batch_size=8)
    with pytest.raises(ValueError, match="either lr or lr_per_256"):
        FinetuneSettings(epochs=10, batch_size=8, lr=1e-3, lr_per_256=1e-3)
    with pytest.raises(ValueError, match="warmup_epochs=5 does not fit into epochs=5"):
        FinetuneSettings(epochs=5, batch_size=8, lr=1e-3)
    with pytest.raises(ValueError, match="does not divide into accumulate=3"):
        replace(QUICK, accumulate=3)


@pytest.mark.parametrize("pooling", ["norm-mean", "mean-norm"])
def test_layer_decay__the_factor_of_every_parameter(pooling: Any) -> None:
    model = Classifier(_encoder(), 5, pooling)
    groups = parameter_groups(model, weight_decay=0.3, layer_decay=0.5)
    found: dict[int, tuple[float, float]] = {}
    for group in groups:
        for parameter in group["params"]:
            assert id(parameter) not in found
            found[id(parameter)] = (group["scale"], group["weight_decay"])
    # Four blocks: 0.5^(5 − i).
    factors = {"patch_embed": 1 / 32, "0": 1 / 16, "1": 1 / 8, "2": 1 / 4, "3": 1 / 2}
    norm = "encoder.norm" if pooling == "norm-mean" else "norm"
    names = dict(model.named_parameters())
    assert {f"{norm}.weight", f"{norm}.bias", "head.weight", "head.bias"} <= set(names)
    for name, parameter in names.items():
        if name == "encoder.pos_embed":
            assert id(parameter) not in found
            continue
        part = name.removeprefix("encoder.").removeprefix("blocks.").split(".")[0]
        vector = name.endswith("bias") or "norm" in name
        assert found[id(parameter)] == (factors.get(part, 1.0), 0.0 if vector else 0.3), name


def test_learning_rate__at_stated_steps() -> None:
    settings = replace(PRESETS["ijepa-1%-l16"], lr=1.0, min_lr=0.1)  # 50 epochs, 5 of warm-up
    rates = {step: learning_rate(settings, step, 25) for step in range(1250)}
    assert rates[0] == 0
    assert rates[1] == pytest.approx(1 / 125)
    assert rates[124] == pytest.approx(124 / 125)
    assert rates[125] == 1
    middle = 125 + (1250 - 125) // 3
    assert rates[middle] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert 0.1 < rates[1249] < 0.1001
    assert max(rates.values()) == 1


def test_drop_path__keeps_the_expectation() -> None:
    torch.manual_seed(0)
    branch = torch.ones(20_000, 1, 3)
    dropped = drop_path(branch, 0.3)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert torch.equal(dropped.amin((1, 2)), dropped.amax((1, 2)))  # an image, whole
    assert abs(float(dropped.mean()) - 1) < 5 * (0.3 / 0.7 / 20_000) ** 0.5


def test_drop_path__acts_in_training_alone_and_grows_with_depth() -> None:
    encoder, images = _encoder(), torch.rand(8, 3, 16, 16)
    before, names = encoder(images), list(encoder.state_dict())
    set_drop_path(encoder, 0.6)
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    assert [block.drop_path for block in blocks] == pytest.approx([0, 0.2, 0.4, 0.6])
    assert list(encoder.state_dict()) == names
    assert torch.equal(encoder.eval()(images), before)
    assert not torch.equal(encoder.train()(images), before)
    with pytest.raises(ValueError, match="drop_path=1"):
        set_drop_path(encoder, 1)


def test_drop_path__draws_nothing_at_zero() -> None:
    encoder, images = _encoder().train(), torch.rand(2, 3, 16, 16)
    state = torch.get_rng_state()
    encoder(images)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["plain", "everything"])
def test_finetune__same_seed_same_result(changes: dict[str, Any]) -> None:
    settings = replace(QUICK, epochs=2, **changes)
    encoder, train, test = _encoder(), _set(64, 0), _set(50, 1)
    first = finetune(encoder, train, test, settings, device="cpu")
    torch.rand(1)  # what others draw does not matter
    state = torch.get_rng_state()
    second = finetune(encoder, train, test, settings, device="cpu", workers=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.losses == second.losses
    assert first.accuracies == second.accuracies
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    other = finetune(encoder, train, test, replace(settings, seed=1), device="cpu")
    assert other.losses != first.losses


class Stopped(Exception):
    pass


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["plain", "everything"])
def test_finetune__goes_on_after_an_interruption_as_if_there_had_been_none(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = replace(QUICK, epochs=4, **changes)
    encoder, train, test = _encoder(), _set(64, 0), _set(50, 1)
    whole = finetune(encoder, train, test, settings, device="cpu")
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        told.append(done)
        if done > 0.6 * total:
            raise Stopped

    with pytest.raises(Stopped):
        finetune(encoder, train, test, settings, device="cpu", kept=tmp_path, progress=stop)
    first, again = told[-1], []
    parts = finetune(
        encoder, train, test, settings, device="cpu", kept=tmp_path,
        progress=lambda done, _: again.append(done),
    )  # fmt: skip
    assert 1 < again[0] <= first
    assert (parts.losses, parts.accuracies) == (whole.losses, whole.accuracies)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name]), name
    done = finetune(encoder, train, test, settings, device="cpu", kept=tmp_path)  # nothing to do
    assert (done.losses, done.accuracies) == (whole.losses, whole.accuracies)


def test_finetune__a_disk_that_takes_no_checkpoint_is_said(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(Notice, match="takes no checkpoint") as said:
            found = finetune(
                _encoder(), _set(64, 0), _set(50, 1), QUICK, device="cpu", kept=tmp_path
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(said) == 1
    assert found.accuracies


def test_finetune__begins_anew_where_a_checkpoint_is_damaged(tmp_path: Path) -> None:
    encoder, train, test = _encoder(), _set(64, 0), _set(50, 1)
    whole = finetune(encoder, train, test, QUICK, device="cpu", kept=tmp_path)
    (weights,) = tmp_path.glob("checkpoints/*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.warns(Notice, match="begins anew"):
        again = finetune(encoder, train, test, QUICK, device="cpu", kept=tmp_path)
    assert again.losses == whole.losses


@pytest.mark.parametrize("pooling", ["norm-mean", "mean-norm"])
def test_finetune__learns_a_separable_task_and_leaves_the_encoder_alone(pooling: Any) -> None:
    encoder, train, test = _encoder().requires_grad_(False), _set(256, 0), _set(300, 1)
    before, steps = _weights(encoder), []
    settings = replace(QUICK, epochs=12, pooling=pooling, drop_path=0.1)
    result = finetune(
        encoder,
        train,
        test,
        settings,
        device="cpu",
        test_every=5,
        progress=lambda *counts: steps.append(counts),
    )
    assert result.accuracy > 95
    assert list(result.accuracies) == [5, 10, 12]
    assert result.accuracy == result.accuracies[12]
    assert result.best_accuracy == max(result.accuracies.values())
    assert result.best_accuracy == result.accuracies[result.best_epoch]
    assert result.classes == ["0", "1"]
    assert steps == [(step, 192) for step in range(1, 193)]
    assert len(result.losses) == 12
    images = torch.from_numpy(test.images).permute(0, 3, 1, 2)
    with torch.no_grad():
        found = result.model(images).argmax(1).numpy()
    assert result.accuracy == pytest.approx(100 * (found == test.labels).mean())

    after = encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert {block.drop_path for block in encoder.blocks} == {0.0}
    trained = result.model.encoder.state_dict()
    assert torch.equal(trained["pos_embed"], before["pos_embed"])
    assert not torch.equal(trained["patch_embed.proj.weight"], before["patch_embed.proj.weight"])


def test_finetune__sees_the_rows_it_is_given() -> None:
    """Labels outside the rows are wrong: whoever uses them learns less."""
    train, test = _set(512, 0), _set(200, 1)
    rows = np.arange(0, 512, 4) + np.arange(128) % 2  # of both classes
    wrong = 1 - train.labels
    wrong[rows] = train.labels[rows]
    mixed = MemorySource(train.images, wrong)
    settings = replace(QUICK, epochs=20)
    result = finetune(_encoder(), mixed, test, settings, device="cpu", train_rows=rows)
    assert result.accuracy > 95


def test_finetune__in_parts_is_the_same_but_for_rounding() -> None:
    train, test, settings = _set(32, 0), _set(20, 1), replace(QUICK, epochs=2, mixup=0.8)
    whole = finetune(_encoder(), train, test, settings, device="cpu")
    parts = finetune(_encoder(), train, test, replace(settings, accumulate=4), device="cpu")
    assert parts.losses == pytest.approx(whole.losses, rel=1e-4)


def test_finetune__one_channel() -> None:
    train, test = _set(64, 0, channels=1), _set(20, 1, channels=1)
    settings = replace(QUICK, epochs=2, **EVERYTHING)
    result = finetune(_encoder(channels=1), train, test, settings, device="cpu")
    assert math.isfinite(result.losses[-1])


def _folder(root: Path, classes: dict[str, int]) -> FolderSource:
    """Pictures of one grey per class, of different sizes."""
    for name, grey in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(8):
            size = (20 + 3 * index, 30 - index)
            Image.new("RGB", size, (grey,) * 3).save(root / name / f"{index}.png")
    return FolderSource(root)


def test_finetune__folders_of_pictures_of_any_size(tmp_path: Path) -> None:
    train = _folder(tmp_path / "train", {"black": 20, "grey": 128, "white": 235})
    test = _folder(tmp_path / "test", {"black": 20, "white": 235})  # no grey: other numbers
    settings = replace(QUICK, epochs=20, batch_size=8)
    result = finetune(_encoder(), train, test, settings, device="cpu")
    assert result.classes == ["black", "grey", "white"]
    assert result.accuracy == 100


def test_match_labels__names_decide() -> None:
    images = np.zeros((3, 8, 8, 3), np.uint8)
    train = MemorySource(images, np.array([0, 1, 2]), ["a", "b", "c"])
    test = MemorySource(images, np.array([1, 0, 1]), ["a", "c"])
    train_labels, test_labels, classes = match_labels(train, test)
    assert train_labels.tolist() == [0, 1, 2]
    assert test_labels.tolist() == [2, 0, 2]
    assert classes == ["a", "b", "c"]


def test_finetune__bad_input_is_said_in_one_sentence(tmp_path: Path) -> None:
    images = np.zeros((3, 8, 8, 3), np.uint8)
    train = MemorySource(images, np.array([0, 1, 1]), ["a", "b"])
    with pytest.raises(ValueError, match="the training images have no labels"):
        match_labels(MemorySource(images), train)
    with pytest.raises(ValueError, match="the test images have no labels"):
        match_labels(train, MemorySource(images))
    with pytest.raises(ValueError, match="class 'x', which training does not have"):
        match_labels(train, MemorySource(images, np.array([0, 1, 1]), ["a", "x"]))
    with pytest.raises(ValueError, match="class 2, but training has only the classes 0 to 1"):
        match_labels(train, MemorySource(images, np.array([0, 1, 2])))
    with pytest.raises(ValueError, match="3 images do not fill a batch of 16"):
        finetune(_encoder(), train, train, QUICK, device="cpu")
    source = _folder(tmp_path, {"a": 0, "b": 255})
    (tmp_path / "b" / "3.png").write_bytes(b"not a picture")
    for workers in (0, 1):
        with pytest.raises(ValueError, match=r"^b/3\.png cannot be used"):
            finetune(_encoder(), source, source, QUICK, device="cpu", workers=workers)


def test_finetune__a_loss_that_is_not_finite_is_an_error() -> None:
    encoder = _encoder()
    with torch.no_grad():
        encoder.blocks[0].norm1.weight.fill_(math.inf)
    with pytest.raises(FloatingPointError, match="the loss of epoch 1 is nan"):
        finetune(encoder, _set(32, 0), _set(8, 1), QUICK, device="cpu")


@pytest.mark.gpu
def test_finetune__on_a_gpu() -> None:
    settings = replace(QUICK, epochs=12)
    plain = finetune(_encoder(), _set(256, 0), _set(300, 1), settings, device="cuda")
    assert plain.accuracy > 95
    every = replace(settings, epochs=3, **EVERYTHING)
    result = finetune(_encoder(), _set(64, 0), _set(20, 1), every, device="cuda")
    assert math.isfinite(result.losses[-1])
