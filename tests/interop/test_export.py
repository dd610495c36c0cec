"""What other tools make of our exports, and we of theirs."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
import torch
from conftest import Command
from synthetic import SMALL

import flexpredict as fp
from flexpredict.engine.encoders import save_encoder
from flexpredict.evaluate.results import Evaluation, write
from flexpredict.interop import exporting, graph

RUN: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 20, "log_every": 1, "checkpoint_every": 10, "workers": 0,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    fp.pretrain(pictures, folder, **RUN)
    found = Evaluation(
        task="scenes-count", method="knn", protocol="default", encoder="target", layers=1,
        checkpoint="", result={"accuracy": 31.25},
    )  # fmt: skip
    write(folder, found)
    return folder


def _images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_export__hugging_face_and_back(run: Path, tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")
    found = fp.export(run, tmp_path / "hf", "huggingface")
    assert found.difference is not None
    assert found.difference < 1e-5
    assert found.files == [
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json"
    ]  # fmt: skip
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    ours = fp.load(run)
    images = _images(3, 3, 32, 32)
    theirs = model(images).last_hidden_state
    torch.testing.assert_close(theirs, ours(images), rtol=0, atol=1e-5)
    wide = _images(2, 3, 24, 52)
    theirs = model(wide, interpolate_pos_encoding=True).last_hidden_state
    torch.testing.assert_close(theirs, ours(wide, resize="interpolate"), rtol=0, atol=1e-5)

    account = fp.import_weights(tmp_path / "hf", tmp_path / "back")
    assert account.left_out == {}
    again = fp.load(tmp_path / "back")  # the export said that it is the target encoder
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in ours.state_dict().items())


def test_import__calls_no_encoder_the_other_one(run: Path, tmp_path: Path) -> None:
    fp.export(run, tmp_path / "hf", "huggingface")
    with pytest.raises(ValueError, match="holds the target encoder: leave --encoder context out"):
        fp.import_weights(tmp_path / "hf", tmp_path / "back", encoder="context")
    fp.import_weights(tmp_path / "hf", tmp_path / "back", encoder="target")
    assert json.loads((tmp_path / "back" / "encoder.json").read_text())["encoder"] == "target"


@torch.inference_mode()
def test_import__of_a_hugging_face_model(tmp_path: Path) -> None:
    """The other way round: their weights, their outputs."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.IJepaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=24, patch_size=8, layer_norm_eps=1e-6,
    )  # fmt: skip
    transformers.utils.logging.disable_progress_bar()
    model = transformers.IJepaModel(config).eval()
    model.embeddings.position_embeddings.data.normal_()
    model.save_pretrained(tmp_path / "hf")
    fp.import_weights(tmp_path / "hf", tmp_path / "run")
    ours = fp.load(tmp_path / "run", encoder="context")
    for size in ((24, 24), (16, 40)):
        images = _images(2, 3, *size)
        theirs = model(images, interpolate_pos_encoding=True).last_hidden_state
        found = ours(images, resize="interpolate")
        torch.testing.assert_close(found, theirs, rtol=0, atol=1e-5)
    config.layer_norm_eps = 1e-12
    transformers.IJepaModel(config).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="layer_norm_eps=1e-12, expected 1e-06"):
        fp.import_weights(tmp_path / "other", tmp_path / "x")


def test_export__preprocessing(run: Path, pictures: np.ndarray, tmp_path: Path) -> None:
    """Their image processor, by our file, gives our pixels."""
    processing = importlib.import_module("transformers.models.vit.image_processing_pil_vit")
    fp.export(run, tmp_path / "hf", "huggingface")
    processor = processing.ViTImageProcessorPil.from_pretrained(tmp_path / "hf")
    theirs = processor(images=list(pictures[:3]), return_tensors="pt")["pixel_values"]
    ours = fp.load(run).normalise(torch.from_numpy(pictures[:3]).permute(0, 3, 1, 2))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


def test_export__onnx(run: Path, tmp_path: Path) -> None:
    importlib.import_module("onnxruntime")
    found = fp.export(run, tmp_path / "onnx", "onnx")
    assert found.files == ["README.md", "encoder.onnx", "preprocessor_config.json"]
    assert found.difference is not None
    assert found.difference < 1e-4
    for batch in (1, 7):
        images = _images(batch, 3, 32, 32)
        theirs = graph.run_graph(tmp_path / "onnx" / "encoder.onnx", images)
        torch.testing.assert_close(theirs, fp.load(run).features(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("output", "size"), [("features", "recompute"), ("maps", "interpolate")])
def test_graph__any_size(
    output: Any, size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("onnxruntime")
    if output == "maps":  # as of weights that one file cannot hold
        monkeypatch.setattr(graph, "_MOST_BYTES", 0)
    torch.manual_seed(0)
    encoder = fp.Encoder(dim=32, depth=1, heads=4, patch_size=8, image_size=32).eval()
    graph.write_graph(encoder, tmp_path / "x.onnx", output, size)
    assert (tmp_path / "x.onnx.data").exists() == (output == "maps")
    for shape in ((1, 3, 32, 32), (7, 3, 32, 32), (2, 3, 24, 48), (1, 3, 8, 16)):
        images = _images(*shape)
        theirs = graph.run_graph(tmp_path / "x.onnx", images)
        if output == "features":
            ours = encoder.features(images, resize=size)
        else:
            ours = encoder.feature_maps(images, resize=size)[0]
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


def test_export__timm(run: Path, tmp_path: Path) -> None:
    """Names and shapes everywhere; outputs where timm can be imported."""
    found = fp.export(run, tmp_path / "timm", "timm")
    account = fp.import_weights(tmp_path / "timm", tmp_path / "back")
    assert account.keys == {"encoder": 53}
    images = _images(2, 3, 32, 32)
    again = fp.load(tmp_path / "back")
    assert torch.equal(again.features(images), fp.load(run).features(images))
    try:
        import timm
    except Exception as error:
        assert found.difference is None
        pytest.skip(f"outputs were not compared: timm cannot be imported here ({error})")
    assert found.difference is not None
    assert found.difference < 1e-5
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.inference_mode():
        theirs = model(images)
    torch.testing.assert_close(theirs, again.features(images), rtol=0, atol=1e-5)


def test_export__torch_goes_on(run: Path, pictures: np.ndarray, tmp_path: Path) -> None:
    """The next ten losses are those of the run that was never moved."""
    half = tmp_path / "half"
    shutil.copytree(run, half)
    shutil.rmtree(half / "checkpoints" / "step-00000020")
    (half / "encoder.safetensors").unlink()
    found = fp.export(half, tmp_path / "moved", "torch")
    assert found.difference == 0
    fp.import_weights(tmp_path / "moved" / "checkpoint.pth.tar", tmp_path / "there")
    fp.pretrain(pictures, tmp_path / "there", resume=True, **RUN)

    def losses(folder: Path) -> list[float]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    assert losses(tmp_path / "there") == losses(run)  # with those it had when it was moved
    one, two = fp.load(run).state_dict(), fp.load(tmp_path / "there").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_export__of_an_import(tmp_path: Path) -> None:
    """An imported StoP stays one: its masked tokens keep the released form."""
    synthetic.save(tmp_path / "x.pth.tar", SMALL["stop-b16"])
    fp.import_weights(tmp_path / "x.pth.tar", tmp_path / "one")
    fp.export(tmp_path / "one", tmp_path / "out", "torch")
    fp.import_weights(tmp_path / "out" / "checkpoint.pth.tar", tmp_path / "two")
    same = (tmp_path / "one/config.yaml").read_text() == (tmp_path / "two/config.yaml").read_text()
    assert same
    one, two = (fp.load(tmp_path / x, encoder="context").state_dict() for x in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_export__torch_of_one_encoder_comes_back(tmp_path: Path) -> None:
    """Of a shape that is none of ours; the folder is enough."""
    transformers = importlib.import_module("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.IJepaConfig(
        **shape, intermediate_size=64, image_size=32, patch_size=8, layer_norm_eps=1e-6
    )
    transformers.IJepaModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "hf")
    fp.import_weights(tmp_path / "hf", tmp_path / "one")
    fp.export(tmp_path / "one", tmp_path / "out", "torch", encoder="context")
    fp.import_weights(tmp_path / "out", tmp_path / "two", encoder="context")
    one, two = (fp.load(tmp_path / x, encoder="context") for x in ("one", "two"))
    assert one.architecture == two.architecture
    images = _images(2, 3, 32, 32)
    assert torch.equal(one.features(images), two.features(images))


def test_export__card(run: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "torch"
    code, printed, _ = command("export", run, "--to", "torch", "--out", out, "--license", "mit")
    assert code == 0
    assert "Largest difference to FlexPredict: 0" in printed
    text = (out / "README.md").read_text()
    for part in (
        "license: mit",
        "| 20 |",
        "scenes-count | knn (default) | all | target | accuracy 31.2",
        'model: "vit_nano"',
        "target",
    ):
        assert part in text
    code, _, err = command("export", run, "--to", "torch", "--out", out)
    assert code == 2
    assert "not empty" in err
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')  # killed in the middle of a line
    assert command("export", cut, "--to", "torch", "--out", tmp_path / "of-cut")[0] == 0
    (cut / "evaluations" / "odd.json").write_text('{"result": {}}')
    code, _, err = command("export", cut, "--to", "torch", "--out", tmp_path / "of-odd")
    assert code == 2
    assert "odd.json is no evaluation" in err
    assert "Traceback" not in err


def test_export__that_differs_is_not_kept(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("transformers")
    rename = exporting.to_hugging_face

    def wrong(weights: Any, depth: int) -> Any:
        renamed = rename(weights, depth)
        renamed["layernorm.bias"] = renamed["layernorm.bias"] + 1e-3
        return renamed

    monkeypatch.setattr(exporting, "to_hugging_face", wrong)
    code, _, err = command("export", run, "--to", "huggingface", "--out", tmp_path / "hf")
    assert code == 1
    assert "differs from FlexPredict by 0.001" in err
    assert list(tmp_path.iterdir()) == []


def test_export__without_the_extra(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    code, _, err = command("export", run, "--to", "huggingface", "--out", tmp_path / "hf")
    assert code == 2
    assert "pip install 'flexpredict[hf]'" in err
    assert list(tmp_path.iterdir()) == []


@torch.inference_mode()
@pytest.mark.parametrize("target", ["huggingface", "torch"])
@pytest.mark.parametrize("size", [(64, 256), (64, 96)])
def test_import__of_a_rectangular_encoder(
    target: exporting.Target, size: tuple[int, int], tmp_path: Path
) -> None:
    """4×16 patches are as many as 8×8: their number does not tell the grid."""
    encoder = fp.create_encoder("vit_nano", image_size=size)
    save_encoder(tmp_path, encoder, {"encoder": "target"})
    fp.export(tmp_path, tmp_path / "out", target)
    source = tmp_path / "out" / "checkpoint.pth.tar" if target == "torch" else tmp_path / "out"
    images = _images(2, 3, *size)
    for name, asked in {"as it is": None, "said again": size}.items():
        fp.import_weights(source, tmp_path / name, image_size=asked)
        again = fp.load(tmp_path / name)
        assert (again.grid, again.sincos) == (encoder.grid, True)
        torch.testing.assert_close(again(images), encoder.eval()(images))


def test_import__positions_tell_the_grid(tmp_path: Path) -> None:
    """Of a file that says nothing; one that says another grid is refused."""
    encoder = fp.create_encoder("vit_nano", image_size=(64, 256))
    save_encoder(tmp_path, encoder, {"encoder": "target"})
    fp.export(tmp_path, tmp_path / "hf", "huggingface")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    spoilt = {
        "says images of 256x64, and its positions are those of a grid of 4x16": {
            "image_size": [256, 64]
        },
        "says images of 64x64, and its weights have 64 positions": {"image_size": 64},
        "has layer_norm_eps=1e-12, expected 1e-06": {"layer_norm_eps": None},
    }
    for sentence, changes in spoilt.items():
        changed = {k: v for k, v in (config | changes).items() if v is not None}
        (tmp_path / "hf/config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=sentence):
            fp.import_weights(tmp_path / "hf", tmp_path / "back")
    del config["image_size"]
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    fp.import_weights(tmp_path / "hf", tmp_path / "back")
    assert fp.load(tmp_path / "back").grid == (4, 16)


def test_torch__counts_whole_batches(pictures: np.ndarray, tmp_path: Path) -> None:
    settings = RUN | {"batch_size": 64, "steps": 3, "chunk_size": 64, "checkpoint_every": 3}
    fp.pretrain(pictures[:100], tmp_path / "run", **settings)  # one batch an epoch
    fp.export(tmp_path / "run", tmp_path / "out", "torch")
    (file,) = (tmp_path / "out").glob("*.pth.tar")
    assert torch.load(file, weights_only=True)["epoch"] == 3
