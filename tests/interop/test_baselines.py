"""Models of transformers under our evaluations."""

import importlib
import json
from pathlib import Path
from typing import Any

import miniatures
import pytest
import torch
from safetensors.torch import load_file, save_file

import flexpredict as fp
from flexpredict.evaluate.finetune import Classifier, parameter_groups
from flexpredict.interop import extras
from flexpredict.interop.baselines import CLASSES

transformers = importlib.import_module("transformers")
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def _folder(kind: str, root: Path) -> tuple[Path, Any]:
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    cls = getattr(transformers, CLASSES[kind])
    more = {"mask_ratio": 0.75} if kind == "vit_mae" else {}
    if kind in ("beit", "data2vec-vision"):
        more = {"use_mean_pooling": False, "use_relative_position_bias": True}
    model = cls(cls.config_class(**SMALL, **more)).eval()
    for parameter in model.parameters():  # class tokens and such begin at zero
        if not parameter.any():
            parameter.data.normal_(std=0.5)
    model.save_pretrained(root / kind)
    return root / kind, model


@pytest.mark.parametrize("kind", CLASSES)
@torch.inference_mode()
def test_baseline__is_the_model(kind: str, tmp_path: Path) -> None:
    folder, model = _folder(kind, tmp_path)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    more: dict[str, Any] = {}
    if kind == "vit_mae":
        model.config.mask_ratio = 0.0
        more["noise"] = torch.arange(16.0).expand(3, -1)
    tokens = model(images, **more).last_hidden_state
    patches, first = tokens[:, -16:], tokens[:, 0]
    which: Any = "context" if kind == "ijepa" else "target"
    pools = ("mean",) if kind == "ijepa" else ("mean", "class", "both")
    wanted = {
        "mean": patches.mean(1), "class": first, "both": torch.cat([patches.mean(1), first], 1),
    }  # fmt: skip
    for pool in pools:
        fp.import_weights(folder, tmp_path / f"run-{pool}", pool=pool)
        found = fp.load(tmp_path / f"run-{pool}", encoder=which)
        assert found.dim == wanted[pool].shape[1]
        torch.testing.assert_close(found.features(images), wanted[pool], rtol=0, atol=1e-5)
        torch.testing.assert_close(found(images).mean(1), wanted[pool], rtol=0, atol=1e-5)
        (maps,) = found.feature_maps(images)
        torch.testing.assert_close(maps.flatten(2).mT, patches, rtol=0, atol=1e-5)
        assert found.features(images, layers=2).shape == (3, 2 * found.dim)
    wide = torch.randn(2, 3, 32, 48)
    with pytest.raises(ValueError, match="resize=interpolate"):
        found.features(wide)
    assert found.feature_maps(wide, resize="interpolate")[0].shape == (2, 32, 4, 6)


def test_baseline__patches_keep_their_places(tmp_path: Path) -> None:
    """MAE shuffles what it keeps; here a bright patch must stay where it is."""
    folder, _ = _folder("vit_mae", tmp_path)
    fp.import_weights(folder, tmp_path / "run", pool="mean")
    model = fp.load(tmp_path / "run")
    plain = torch.zeros(1, 3, 32, 32)
    bright = plain.clone()
    bright[..., 8:16, 16:24] = 5
    change = (model.feature_maps(bright)[0] - model.feature_maps(plain)[0]).norm(dim=1)[0]
    assert divmod(int(change.argmax()), 4) == (1, 2)


def test_baseline__evaluations(tmp_path: Path) -> None:
    miniatures.labelled_folder(tmp_path / "data")
    on: dict[str, Any] = {"train": tmp_path / "data/train", "test": tmp_path / "data/val"}
    folder, _ = _folder("vit", tmp_path)
    run = tmp_path / "run"
    fp.import_weights(folder, run, pool="both")
    with pytest.raises(ValueError, match="a wrapped model, which can be evaluated only"):
        fp.export(run, tmp_path / "out", "onnx")
    assert fp.knn(run, neighbours=3, **on).result["accuracy"] > 50
    assert fp.probe(run, epochs=2, **on).method == "probe"
    tuned = fp.finetune(run, settings={"epochs": 1, "batch_size": 8, "warmup_epochs": 0}, **on)
    assert 0 <= tuned.result["accuracy"] <= 100
    found = fp.load(run)
    from flexpredict.evaluate.finetune import Classifier, layer_of

    names = dict(Classifier(found, 3).named_parameters())
    layers = {layer_of(name, 2) for name in names}
    assert layers == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["vit", "vit_mae", "dinov2"])
def test_baseline__fine_tuned_as_it_was_made(kind: str, tmp_path: Path) -> None:
    """What makes tokens learns slowest, undecayed; a fixed table stays fixed."""
    folder, _ = _folder(kind, tmp_path)
    fp.import_weights(folder, tmp_path / "run", pool="mean")
    model = Classifier(fp.load(tmp_path / "run"), classes=3)
    place = {
        id(parameter): (group["scale"], group["weight_decay"])
        for group in parameter_groups(model, weight_decay=0.05, layer_decay=0.5)
        for parameter in group["params"]
    }
    found = {name: place.get(id(one)) for name, one in model.named_parameters()}
    tokens = "encoder.model.embeddings."
    assert found[f"{tokens}cls_token"] == (0.125, 0.0)
    fixed = kind == "vit_mae"
    assert found[f"{tokens}position_embeddings"] == (None if fixed else (0.125, 0.0))
    assert found["encoder.patch_embed.projection.weight"] == (0.125, 0.05)
    assert found["encoder.norm.weight"] == (1.0, 0.0)
    assert found["head.weight"] == (1.0, 0.05)


@torch.inference_mode()
def test_baseline__of_timm(tmp_path: Path) -> None:
    """A model with a class token, which is no encoder of ours."""
    arguments = {
        "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4,
    }  # fmt: skip
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments}
    folder = tmp_path / "timm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    timm = extras.timm_here()
    if timm is None:
        with pytest.raises(ValueError, match="timm cannot be imported here"):
            fp.import_weights(folder, tmp_path / "run", pool="class")
        pytest.skip("outputs were not compared: timm cannot be imported here")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **arguments).eval()
    save_file(model.state_dict(), folder / "model.safetensors")
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    tokens = model.forward_features(images)
    wanted = {"mean": tokens[:, 1:].mean(1), "class": tokens[:, 0]}
    for pool in ("mean", "class"):
        fp.import_weights(folder, tmp_path / f"run-{pool}", pool=pool)
        found = fp.load(tmp_path / f"run-{pool}")
        torch.testing.assert_close(found.features(images), wanted[pool], rtol=0, atol=1e-5)
        assert found.features(images, layers=2).shape == (3, 64)
    assert found.feature_maps(torch.randn(1, 3, 32, 48), resize="interpolate")[0].shape[2:] == (
        4,
        6,
    )


@pytest.mark.parametrize("kind", ["vit_mae", "ijepa"])
def test_folder__what_it_says_has_to_be_true(kind: str, tmp_path: Path) -> None:
    folder, _ = _folder(kind, tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"layer_norm_eps": 1e-6}
    ways: list[dict[str, Any]] = [{"pool": "mean"}, {}] if kind == "ijepa" else [{"pool": "mean"}]
    wrong = [{"num_hidden_layers": 3}, {"hidden_size": 64}, {"image_size": 64}]
    for change in [*wrong, {"num_attention_heads": "x"}, {"num_attention_heads": 5}]:
        (folder / "config.json").write_text(json.dumps(config | change))
        for way in ways:
            with pytest.raises(ValueError, match=r"fit|says|heads|not read as"):
                fp.import_weights(folder, tmp_path / "x", **way)
    (folder / "config.json").write_text(json.dumps(config))
    for text in ("[1]", "{", '{"image_mean": [0.5], "image_std": [0.5]}'):
        (folder / "preprocessor_config.json").write_text(text)
        for way in ways:
            with pytest.raises(ValueError, match=r"not readable|3 channels need as many"):
                fp.import_weights(folder, tmp_path / "x", **way)
    (folder / "preprocessor_config.json").unlink()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    for way in ways:
        with pytest.raises(ValueError, match=r"cannot be read|not read as"):
            fp.import_weights(folder, tmp_path / "x", **way)
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text("{}")
    for way in ways:
        with pytest.raises(ValueError, match=r"which weight is in|not read as"):
            fp.import_weights(folder, tmp_path / "x", **way)
    assert not (tmp_path / "x").exists()


@torch.inference_mode()
def test_folder__of_pickled_weights(tmp_path: Path) -> None:
    """Read as weights and nothing else."""
    folder, model = _folder("ijepa", tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    wanted = model(images).last_hidden_state.mean(1)
    fp.import_weights(folder, tmp_path / "wrapped", pool="mean")
    found = fp.load(tmp_path / "wrapped", encoder="context")
    torch.testing.assert_close(found.features(images), wanted, rtol=0, atol=1e-5)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-6}))
    fp.import_weights(folder, tmp_path / "run")
    found = fp.load(tmp_path / "run", encoder="context")
    torch.testing.assert_close(found.features(images), wanted, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="leave out --model"):
        fp.import_weights(folder, tmp_path / "x", pool="mean", image_size=64)


def test_baseline__refusals(tmp_path: Path) -> None:
    folder, _ = _folder("ijepa", tmp_path)
    with pytest.raises(ValueError, match="no class token"):
        fp.import_weights(folder, tmp_path / "x", pool="class")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model_type bert: expected one of ijepa"):
        fp.import_weights(folder, tmp_path / "y", pool="mean")
    with pytest.raises(ValueError, match="model_type=bert, expected ijepa"):
        fp.import_weights(folder, tmp_path / "y")
    assert not (tmp_path / "x").exists()
