"""Released layouts in, run folders out; whatever does not fit is refused in a sentence."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
import torch
from conftest import Command
from safetensors.torch import save_file
from synthetic import PUBLISHED, SMALL, Published, Weights

import flexpredict as fp
from flexpredict.build import build_objective
from flexpredict.config import read_settings
from flexpredict.engine import checkpoint
from flexpredict.interop.files import read_foreign
from flexpredict.interop.importing import convert


def _equal(one: Any, other: Weights) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("name", SMALL)
def test_import__released_layouts(name: str, tmp_path: Path) -> None:
    one = SMALL[name]
    synthetic.save(tmp_path / "x.pth.tar", one)
    account = fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run")
    assert account.keys == {"encoder": 53, "target_encoder": 53, "predictor": 32}
    assert set(account.left_out) == {"opt"}
    assert _equal(fp.load(tmp_path / "run").state_dict(), synthetic.encoder(one, 2))
    context = fp.load(tmp_path / "run", encoder="context")
    assert _equal(context.state_dict(), synthetic.encoder(one, 0))
    settings = read_settings(tmp_path / "run" / "config.yaml")
    stop = one.method == "stop"
    assert (settings.positions, settings.form) == (
        ("stop", "released") if stop else ("sincos", "paper")
    )
    objective = build_objective(settings)
    folder = checkpoint.newest(tmp_path / "run")
    assert folder is not None
    objective.load_state_dict(checkpoint.read_weights(folder / checkpoint.MODEL))
    assert _equal(objective.predictor.state_dict(), synthetic.predictor(one, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_import__published_shapes(name: str, tmp_path: Path) -> None:
    """Names and shapes of every published architecture."""
    one = PUBLISHED[name]
    synthetic.save(tmp_path / "x.pth.tar", one, opt=None)
    found = convert(read_foreign(tmp_path / "x.pth.tar"))
    encoder, predictor = 5 + 12 * one.depth, 8 + 12 * one.predictor_depth
    assert found.account.keys == {
        "encoder": encoder, "target_encoder": encoder, "predictor": predictor,
    }  # fmt: skip
    assert found.settings is not None
    named = {768: "vit_base", 1024: "vit_large", 1280: "vit_huge", 1408: "vit_giant"}
    assert found.settings.model == named[one.dim]
    assert found.settings.predictor_dim is None
    assert found.settings.epochs == (300 if one.dim == 1280 else 600)  # of H, whatever its patches
    (tmp_path / "x.pth.tar").unlink()  # gigabytes


def test_import__vectors_of_the_released_code(
    vectors: dict[str, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    """Weights that released code made, in a folder that tells the heads; its outputs follow."""
    data = {key: torch.from_numpy(value) for key, value in vectors["stop-tiny"].items()}
    start = "target_encoder."
    weights = {k.removeprefix(start): v for k, v in data.items() if k.startswith(start)}
    folder = _hugging_face_folder(tmp_path / "hf", weights, heads=4)
    fp.import_weights(folder, tmp_path / "run", encoder="target")
    outputs = fp.load(tmp_path / "run")(data["images"])
    torch.testing.assert_close(outputs, data["target_full"], rtol=0, atol=1e-5)


def _hugging_face_folder(folder: Path, weights: Weights, heads: int, **config: Any) -> Path:
    folder.mkdir()
    save_file(synthetic.hugging_face(weights), folder / "model.safetensors")
    said = {"model_type": "ijepa", "layer_norm_eps": 1e-6, "num_attention_heads": heads}
    (folder / "config.json").write_text(json.dumps(said | config))
    return folder


@pytest.mark.parametrize("kind", ["hf", "hf-module", "timm", "timm-folder", "hf-classifier"])
def test_import__one_encoder(kind: str, tmp_path: Path) -> None:
    one = SMALL["ijepa-h14"]
    weights = synthetic.encoder(one, 5)
    path = tmp_path / "given"
    if kind == "hf":
        _hugging_face_folder(path, weights, 2)
    elif kind == "hf-classifier":
        renamed = {f"ijepa.{k}": v for k, v in synthetic.hugging_face(weights).items()}
        path.mkdir()
        save_file(renamed | {"classifier.weight": torch.zeros(3, 64)}, path / "model.safetensors")
        said = {"model_type": "ijepa", "layer_norm_eps": 1e-6}
        (path / "config.json").write_text(json.dumps(said))
    elif kind == "hf-module":
        words = {
            "encoder.layer.": "layers.", "attention.attention.query": "attention.q_proj",
            "attention.attention.key": "attention.k_proj",
            "attention.attention.value": "attention.v_proj",
            "attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1",
            "output.dense": "mlp.fc2",
        }  # fmt: skip
        renamed = {}
        for name, value in synthetic.hugging_face(weights).items():
            for theirs, new in words.items():
                name = name.replace(theirs, new)
            renamed[name] = value
        torch.save(renamed, path)
    elif kind == "timm":
        torch.save({"state_dict": weights}, path)
    else:
        path.mkdir()
        save_file(weights, path / "model.safetensors")
        (path / "config.json").write_text('{"architecture": "vit_x", "pretrained_cfg": {}}')
    account = fp.import_weights(path, tmp_path / "run")
    assert list(account.left_out) == (
        ["encoder.classifier.weight"] if kind == "hf-classifier" else []
    )
    with pytest.raises(ValueError, match="holds one encoder, the context encoder"):
        fp.load(tmp_path / "run")  # what Hugging Face and timm publish is the context encoder
    assert _equal(fp.load(tmp_path / "run", encoder="context").state_dict(), weights)


def test_import__float16_and_no_prefix(tmp_path: Path) -> None:
    content = synthetic.released(SMALL["stop-b16"], module=False) | {"loss": np.float64(0.25)}
    for part in ("encoder", "target_encoder", "predictor"):
        content[part] = {name: value.half() for name, value in content[part].items()}
    torch.save(content, tmp_path / "x.pth.tar")
    account = fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run")
    assert "target_encoder: float16 weights are used as float32" in account.notes
    assert fp.load(tmp_path / "run").norm.weight.dtype == torch.float32
    assert fp.load(tmp_path / "run").sincos


def test_import__another_size(tmp_path: Path) -> None:
    one = SMALL["stop-b16"]
    synthetic.save(tmp_path / "x.pth.tar", one)
    fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run")
    images = torch.randn(2, 3, 96, 128, generator=torch.Generator().manual_seed(0))
    trained = fp.load(tmp_path / "run")
    for resize in ("recompute", "interpolate"):
        out = tmp_path / resize
        fp.import_weights(tmp_path / "x.pth.tar", out, image_size=(96, 128), resize=resize)
        encoder = fp.load(out)
        assert encoder.grid == (6, 8)
        torch.testing.assert_close(encoder(images), trained(images, resize=resize))
        assert encoder.sincos == (resize == "recompute")
    with pytest.raises(ValueError, match="not sin-cos"):  # never silently other positions
        encoder.features(images[..., :96])


def _refusals() -> dict[str, tuple[Any, str]]:
    one = SMALL["ijepa-h14"]

    def changed(part: str, change: Any) -> dict[str, Any]:
        content = synthetic.released(one, module=False, optimiser=False)
        change(content[part])
        return content

    return {
        "no target": (
            {k: v for k, v in synthetic.released(one).items() if k != "target_encoder"},
            "no target_encoder: import its context encoder with --encoder context",
        ),
        "missing": (
            changed("encoder", lambda w: w.pop("blocks.1.mlp.fc1.bias")),
            "of 53 expected keys, 1 missing (blocks.1.mlp.fc1.bias)",
        ),
        "extra": (
            changed("target_encoder", lambda w: w.update(cls_token=torch.zeros(1, 1, 64))),
            "1 extra (cls_token)",
        ),
        "shape": (
            changed("predictor", lambda w: w.update({"predictor_proj.bias": torch.zeros(3)})),
            "predictor_proj.bias is 3, expected 64",
        ),
        "not finite": (
            changed("encoder", lambda w: w["norm.bias"].fill_(torch.nan)),
            "norm.bias holds values that are not finite",
        ),
        "more": (synthetic.released(one) | {"args": 1}, "also holds 'args'"),
        "something else": ({"epoch": 3, "loss": 0.1}, "holds epoch, loss: expected encoder"),
        "unknown shape": (
            synthetic.released(one._replace(dim=32, hidden=128)),
            "width 32, depth 4, MLP 128, which is none of vit_nano",
        ),
        "twice": (
            changed("encoder", lambda w: w.update({"module.norm.bias": torch.zeros(64)})),
            "norm.bias is there twice, once as module.norm.bias",
        ),
        "whole numbers": (
            changed("target_encoder", lambda w: w.update(count=torch.tensor(3))),
            "target_encoder holds count, torch.int64",
        ),
        "not our export": (
            synthetic.released(one) | {"flexpredict": {"settings": 3}},
            "is not one that an export writes",
        ),
        "other network": ({"conv1.weight": torch.zeros(3)}, "its first keys are conv1.weight"),
    }  # fmt: skip


@pytest.mark.parametrize("case", _refusals())
def test_import__refusals(case: str, tmp_path: Path, command: Command) -> None:
    content, sentence = _refusals()[case]
    torch.save(content, tmp_path / "x.pth.tar")
    code, out, err = command("import", tmp_path / "x.pth.tar", "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert sentence in err.splitlines()[-1]
    assert err.count("\n") == 2  # what is read, and what is wrong
    assert not (tmp_path / "run").exists()


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch opened",)


def test_import__never_executes(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"encoder": _Evil()}, "evil.pth.tar")
    Path("evil.pkl").write_bytes(pickle.dumps({"encoder": _Evil()}, protocol=2))
    Path("new.pkl").write_bytes(pickle.dumps({"encoder": _Evil()}))
    for name in ("evil.pth.tar", "evil.pkl"):
        code, _, err = command("import", name, "--out", "run")
        assert code == 2
        assert "asks for posix.system, which is code" in err
    code, _, err = command("import", "new.pkl", "--out", "run")
    assert "no weight file" in err
    assert not Path("opened").exists()


def test_import__damaged_or_wrong(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "x.pth.tar"
    synthetic.save(path, SMALL["stop-b16"])
    whole = path.read_bytes()
    for length in (len(whole) // 2, len(whole) - 100, 10, 0):
        path.write_bytes(whole[:length])
        code, _, err = command("import", path, "--out", tmp_path / "run")
        assert code == 2
        assert "damaged" in err or "no weight file" in err
    for text in (b"model: vit_base\n", b"# notes\nkey: [1, 2]\n", b"(lp0\n.", b"0" * 64):
        path.write_bytes(text)
        code, _, err = command("import", path, "--inspect")
        assert (code, err.count("\n")) == (2, 1), text
    path.write_bytes(whole)
    code, _, err = command("import", path, "--out", tmp_path / "run", "--model", "vit_base")
    assert code == 2
    assert "which is vit_nano: --model vit_base is of width 768" in err
    code, _, err = command("import", path, "--out", tmp_path / "run", "--image-size", "100")
    assert "choose multiples of 16" in err
    code, out, _ = command("import", path, "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["keys"]["predictor"] == 32
    code, _, err = command("import", path, "--out", tmp_path / "run")
    assert "not empty" in err


@pytest.mark.parametrize(
    "odd",
    [
        {"lr": [1, 2], "opt": ["?"]}, {"opt": {"state": 3}}, {"loss": float("nan")},
        {"opt": {"state": {0: 1, 1: {"step": "x"}}}},
    ],
)  # fmt: skip
def test_import__odd_facts_are_no_obstacle(odd: dict[str, Any], tmp_path: Path) -> None:
    content = synthetic.released(SMALL["stop-b16"]) | odd
    torch.save(content, tmp_path / "x.pth.tar")
    fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run")
    assert fp.inspect_weights(tmp_path / "x.pth.tar")
    for line in (tmp_path / "run").glob("metrics.jsonl"):
        assert "NaN" not in line.read_text()


def test_import__two_encoders_stored_as_one(tmp_path: Path) -> None:
    content = synthetic.released(SMALL["stop-b16"])
    content["target_encoder"] = content["encoder"]
    torch.save(content, tmp_path / "x.pth.tar")
    fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run")
    one, two = (fp.load(tmp_path / "run", encoder=e) for e in ("context", "target"))
    assert _equal(one.state_dict(), two.state_dict())
    found = {one.what: one.value for one in fp.inspect_weights(tmp_path / "x.pth.tar")}
    assert found["distance of the two encoders"] == 0


def test_import__wrapped_and_prefixed(tmp_path: Path, command: Command) -> None:
    one = SMALL["ijepa-h14"]
    weights = {f"module._orig_mod.{k}": v for k, v in synthetic.encoder(one, 0).items()}
    torch.save({"model": weights, "args": 1}, tmp_path / "x.pth")
    code, out, _ = command("import", tmp_path / "x.pth", "--out", tmp_path / "run")
    assert code == 0
    assert "left out: args: beside the weights" in out
    hint = out.splitlines()[-1]
    assert hint.endswith(", encoder='context')")
    loaded = fp.load(tmp_path / "run", encoder="context")
    assert _equal(loaded.state_dict(), synthetic.encoder(one, 0))


def test_import__context_of_two(tmp_path: Path) -> None:
    one: Published = SMALL["stop-l16"]
    synthetic.save(tmp_path / "x.pth.tar", one, target_encoder=...)
    account = fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "run", encoder="context")
    assert "predictor" in account.left_out
    loaded = fp.load(tmp_path / "run", encoder="context")
    assert _equal(loaded.state_dict(), synthetic.encoder(one, 0))
