"""Evaluations from the command line: every published layout in miniature, whole and broken."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import miniatures
import numpy as np
import pytest
import torch
import yaml
from conftest import Command
from PIL import Image
from processes import Start, wait_until

import flexpredict as fp
from flexpredict.api.evaluation import _open
from flexpredict.config import settings_from
from flexpredict.engine import precision
from flexpredict.engine.encoders import save_encoder
from flexpredict.evaluate import features, tuned
from flexpredict.evaluate.finetune_settings import PRESETS
from flexpredict.evaluate.labels import Budget
from flexpredict.evaluate.subject import Draws
from flexpredict.evaluate.tasks import TASKS
from flexpredict.files import write_text
from flexpredict.notice import Notice
from flexpredict.report.table import paper_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as pretraining leaves it."""
    run = tmp_path_factory.mktemp("run")
    images = np.stack([miniatures.picture(label, 1000, (32, 32)) for label in range(16)])
    fp.pretrain(
        images, run, model="vit_nano", patch_size=4, image_size=32, batch_size=16, steps=2,
        workers=0, device="cpu",
    )  # fmt: skip
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """The same, free to be written to."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("task", sorted(miniatures.WRITERS))
def test_task__published_layout_from_the_shell(
    task: str, run: Path, tmp_path: Path, command: Command
) -> None:
    data = tmp_path / "data"
    miniatures.WRITERS[task](data)
    code, out, err = command("knn", run, "--task", task, "--data", data, "--neighbours=5", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["result"]["accuracy"] > 90
    assert found["task"] == task
    saved = [json.loads(path.read_text()) for path in (run / "evaluations").glob("*.json")]
    assert saved == [found]
    for key in ("protocol", "encoder", "layers", "checkpoint", "seeds", "version"):
        assert found[key]


def _unlink(pattern: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        (next(iter(sorted(root.glob(pattern))))).unlink()

    return remove


def _rewrite(pattern: str, text: str) -> Callable[[Path], None]:
    return lambda root: write_text(next(iter(sorted(root.glob(pattern)))), text)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "imagenet": (lambda root: shutil.rmtree(root / "val"), "val"),
    "imagenet-1%": (_unlink("1percent.txt"), "1percent.txt"),
    "imagenet-1%@msn": (_rewrite("1percent.txt", "n01440760_99999.JPEG\n"), "n01440760_99999"),
    "tiny-imagenet": (_unlink("*/val/val_annotations.txt"), "val_annotations.txt"),
    "cifar10": (_unlink("*/data_batch_3"), "data_batch_3"),
    "cifar100": (_rewrite("*/train", "no pickle"), "train"),
    "places205": (_rewrite("*/train_places205.csv", "a/abbey0/x.jpg\n"), "train_places205.csv"),
    "inat18": (_rewrite("train2018.json", "{"), "train2018.json"),
    "clevr-count": (_unlink("*/scenes/CLEVR_val_scenes.json"), "CLEVR_val_scenes.json"),
    "clevr-dist": (_rewrite("*/scenes/CLEVR_train_scenes.json", "{}"), "CLEVR_train_scenes.json"),
}


def test_task__every_layout_is_broken_once() -> None:
    assert set(BROKEN) >= {task for task in TASKS if "@" not in task and "scenes" not in task}


@pytest.mark.parametrize("task", sorted(BROKEN))
def test_task__broken_layout_gets_one_sentence(
    task: str, run: Path, tmp_path: Path, command: Command
) -> None:
    data = tmp_path / "data"
    miniatures.WRITERS[task](data)
    spoil, named = BROKEN[task]
    spoil(data)
    code, out, err = command("knn", run, "--task", task, "--data", data)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err
    assert not (run / "evaluations").exists()


@pytest.mark.parametrize("year", ["2017", "2016"])
def test_video__davis_from_the_shell(
    year: str, run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.davis(tmp_path / "data", year)
    arguments = ["video", run, "--task", f"davis{year}", "--data", tmp_path / "data"]
    code, out, err = command(*arguments, "--size=64", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["result"]["J&F"] > 50
    assert len(found["details"]["objects"]) == (4 if year == "2017" else 2)
    masks = Path(found["masks"])
    with Image.open(masks / "bear" / "00003.png") as mask:
        assert mask.mode == "P"
        assert mask.size == (96, 64)
        assert set(np.unique(np.asarray(mask))) <= {0, 1, 2}
    with Image.open(masks / "camel.gif") as overlay:
        assert getattr(overlay, "n_frames", 1) == 5
    code, out, _ = command(*arguments, "--size=64", "--encoder=untrained")
    assert code == 0
    assert "J&F" in out
    assert "untrained encoder" in out


def test_video__broken_inputs_get_one_sentence(run: Path, tmp_path: Path, command: Command) -> None:
    def refused(name: str, spoil: Callable[[Path], None], *more: str) -> str:
        root = tmp_path / name
        miniatures.davis(root)
        spoil(root / "DAVIS")
        code, out, err = command("video", run, "--data", root, *more)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    assert "no mask for its first frame" in refused("a", _unlink("Annotations/480p/bear/00000.png"))

    def smaller(root: Path) -> None:
        Image.new("P", (48, 32)).save(root / "Annotations/480p/bear/00002.png")

    assert "48×32: expected 96×64" in refused("b", smaller)
    assert "no frames of cow" in refused("c", lambda _: None, "--only=cow")
    masks = tmp_path / "d" / "DAVIS" / "Annotations" / "480p"
    assert "is not empty" in refused("d", lambda _: None, f"--out={masks}")
    assert "needs its data" in command("video", run)[2]


def test_probe__protocols_and_budgets(run: Path, tmp_path: Path, command: Command) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    data = ["--data", tmp_path / "photos"]
    code, out, err = command("probe", run, *data, "--labels=4/class", "--draws=3", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["seeds"] == [0, 1, 2]
    assert found["result"]["std"] >= 0
    assert "test was touched once" in found["note"]
    for protocol in ("vissl-sgd", "vissl-lars", "ijepa"):
        code, out, err = command("probe", run, *data, "--protocol", protocol, "--epochs=2")
        assert code == 0, err
        assert "chosen on the test set" in out
    code, out, err = command("logistic", run, *data, "--labels=50%", "--json")
    assert code == 0, err
    assert json.loads(out)["result"]["accuracy"] > 90
    for protocol, penalty in (("released-1%", 0.0025), ("released-1%-script", 0.00025)):
        code, out, err = command("logistic", run, *data, "--protocol", protocol, "--json")
        assert code == 0, err
        assert "after_100_iterations" in json.loads(out)["result"]
        assert json.loads(out)["details"]["penalty"] == penalty
    assert len(list((run / "evaluations").glob("*.json"))) == 7
    for more in (["--layers=4"], ["--seed=5"], ["--image-size=64"], ["--temperature=1"], []):
        assert command("knn", run, *data, "--neighbours=3", *more)[0] == 0
    assert len(list((run / "evaluations").glob("*knn*.json"))) == 5  # none overwrites another


@pytest.mark.parametrize(("protocol", "narrow"), [("default", True), ("released-1%", False)])
def test_logistic__released_is_float32_on_a_gpu(
    protocol: str, narrow: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU features are bfloat16 as a rule; here a CPU is told to do as one."""
    asked = []

    def as_on_a_gpu(precision: str, _: torch.device) -> torch.dtype:
        asked.append(precision)
        return torch.bfloat16 if precision == "auto" else torch.float32

    for module in (precision, features):
        monkeypatch.setattr(module, "compute_dtype", as_on_a_gpu)
    miniatures.labelled_folder(tmp_path / "photos")
    fp.logistic(run, data=tmp_path / "photos", protocol=protocol)
    assert set(asked) == {"auto" if narrow else "float32"}


def test_probe__one_label_per_class_chooses_nothing(
    run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    for method in ("probe", "logistic"):
        arguments = [method, run, "--data", tmp_path / "photos", "--labels=1/class", "--json"]
        code, out, err = command(*arguments)
        assert code == 0, err
        found = json.loads(out)
        assert found["result"]["accuracy"] > 90
        assert "nothing was chosen" in found["note"]


def test_probe__a_folder_without_a_test_part_is_split(
    run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    code, out, err = command(
        "knn", run, "--data", tmp_path / "photos/train", "--neighbours=3", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["details"] == {
        "neighbours": 3, "temperature": 0.07, "train_images": 18, "test_images": 6,
    }  # fmt: skip


def test_knn__other_images_are_another_evaluation(
    run: Path, tmp_path: Path, command: Command
) -> None:
    """And the number says of how many it is."""
    for name in ("one", "two"):
        miniatures.labelled_folder(tmp_path / name)
    train, tests = tmp_path / "one/train", [tmp_path / "one/val", tmp_path / "two/val"]
    before = len(list((run / "evaluations").glob("*.json")))
    for test in tests:
        code, out, err = command("knn", run, "--train", train, "--test", test, "--neighbours=3")
        assert code == 0, err
        assert " train and " in out
        assert " test images" in out
    assert len(list((run / "evaluations").glob("*.json"))) == before + 2


def test_knn__of_a_run_that_cannot_be_written(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    miniatures.labelled_folder(tmp_path / "photos")
    monkeypatch.setattr("flexpredict.evaluate.results.write", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, out, err = command("knn", run, "--data", tmp_path / "photos", "--neighbours=3")
    assert code == 0
    assert f"the result cannot be kept in {run}: Read-only file system" in err
    assert "photos, knn (k3): " in out


def test_probe__broken_inputs_get_one_sentence(run: Path, tmp_path: Path, command: Command) -> None:
    photos = tmp_path / "photos"
    miniatures.labelled_folder(photos)

    def refused(*arguments: str | Path) -> str:
        code, out, err = command("probe", run, *arguments)
        assert (code, out) == (2, ""), out
        assert err.count("\n") == 1
        return err

    assert "--task, --data" in refused()
    assert "choose one of imagenet" in refused("--task=cifar1000", "--data", photos)
    assert "needs its data" in refused("--task=cifar100")
    assert "flexpredict video" in refused("--task=davis2017", "--data", photos)
    assert "is not known: choose one of default" in refused("--data", photos, "--protocol=mine")
    assert "labels='none'" in refused("--data", photos, "--labels=none")
    assert "only 8 training images" in refused("--data", photos, "--labels=9/class")
    assert "same images every time" in refused("--data", photos, "--draws=2")
    assert "this encoder has 4" in refused("--data", photos, "--layers=5")
    assert "multiple of 4" in refused("--data", photos, "--image-size=30")
    shutil.rmtree(photos / "val/class-1")
    assert "class-1 is in the training set, but is missing from the test set" in refused(
        "--data", photos
    )
    flat = tmp_path / "flat"
    miniatures.save(flat / "a.png", 0, 0)
    assert "no labels" in refused("--data", flat)
    miniatures.save(tmp_path / "single/a/0.png", 0, 0)
    miniatures.save(tmp_path / "single/b/1.png", 1, 1)
    assert "one image per class" in refused("--data", tmp_path / "single")
    assert "go together" in refused("--train", photos / "train")
    assert "go together" in refused("--data", photos, "--train", photos, "--test", photos)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"label": np.zeros(3, np.uint8)}, "6 images, but 3 entries in label"),
        ({"label": np.zeros(9, np.uint8)}, "6 images, but 9 entries in label"),
        ({"split": np.zeros(6, np.uint8)}, "no images in its split val"),
        ({"label": np.arange(6, dtype=np.uint8)}, "missing from the test set"),
        ({"offset": np.zeros(0, np.int64)}, "damaged"),
        (None, "cannot be read as an .npz file"),
    ],
)
def test_packed__labels_that_do_not_match_are_refused(
    change: dict[str, np.ndarray] | None,
    sentence: str,
    run: Path,
    tmp_path: Path,
    command: Command,
) -> None:
    images = []
    for number in range(6):
        miniatures.save(tmp_path / "x.jpg", number % 2, number)
        images.append(np.frombuffer((tmp_path / "x.jpg").read_bytes(), np.uint8))
    whole = {
        "jpeg": np.concatenate(images),
        "offset": np.cumsum([0, *map(len, images)]),
        "label": np.arange(6, dtype=np.uint8) % 2,
        "split": np.array([0, 0, 0, 0, 1, 1], np.uint8),
    }
    path = tmp_path / "set.npz"
    np.savez(path, **whole)
    assert command("knn", run, "--data", path, "--neighbours=3")[0] == 0
    if change is None:
        path.write_bytes(path.read_bytes()[:-200])
    else:
        np.savez(path, **(whole | change))
    code, out, err = command("knn", run, "--data", path, "--neighbours=3")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert sentence in err


def test_imagenet_1_percent__another_budget_needs_no_list(
    run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.imagenet(tmp_path / "data")
    arguments = ["knn", run, "--task=imagenet-1%", "--data", tmp_path / "data", "--neighbours=3"]
    assert command(*arguments)[0] == 2
    assert command(*arguments, "--labels=50%")[0] == 0


def test_finetune__from_the_shell(run: Path, tmp_path: Path, command: Command) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    arguments = ["finetune", run, "--data", tmp_path / "photos", "--labels=6/class"]
    quick = ["--set=epochs=6", "--set=batch_size=6", "--set=warmup_epochs=1", "--set=lr=0.003"]
    code, out, err = command(*arguments, *quick, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["result"]["accuracy"] > 60  # of three classes
    assert found["details"]["settings"]["lr"] == 0.003
    assert found["details"]["train_images"] == 18
    assert "chosen on the test set" in found["note"]
    for wrong, sentence in (
        ("--preset=big", "choose one of ijepa-1%-l16"),
        ("--set=epoch=3", "epoch is no setting of fine-tuning"),
        ("--set=warmup_epochs=50", "does not fit into epochs"),
        ("--set=batch_size=0", "batch_size=0 does not fit"),
        ("--set=pooling=max", "pooling='max' does not fit"),
        ("--set=lr=high", "lr='high' does not fit"),
        ("--set=seed=3", "seed is no setting"),
        ("--set=crop_scale=[0.9, 0.1]", "crop_scale=[0.9, 0.1] does not fit"),
        ("--set=betas=[1, 1]", "both have to be below 1"),
    ):
        code, out, err = command(*arguments, wrong)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert sentence in err


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "killed"])
def test_finetune__one_that_was_stopped_goes_on(
    asked: bool, run: Path, tmp_path: Path, command: Command, start: Start
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    arguments = [
        "finetune", str(run), "--data", str(tmp_path / "photos"), "--labels=6/class", "--draws=2",
        "--set=epochs=40", "--set=batch_size=6", "--set=warmup_epochs=1", "--json",
    ]  # fmt: skip
    code, whole, err = command(*arguments)
    assert code == 0, err
    unfinished = run / "evaluations" / "unfinished"
    assert not unfinished.exists()
    with (tmp_path / "err").open("wb") as said:
        process = start("-m", "flexpredict", *arguments, stdout=subprocess.DEVNULL, stderr=said)
        wait_until(lambda: list(unfinished.glob("*/*/checkpoints/step-*/state.json")), process)
        process.terminate() if asked else process.kill()
        assert process.wait() == (75 if asked else -signal.SIGKILL)
    if asked:
        (*_, last) = (tmp_path / "err").read_text().splitlines()
        assert last == (
            "flexpredict: stopped; the same command goes on from the last epoch that was kept"
        )
    assert list(unfinished.iterdir())
    code, parts, err = command(*arguments)
    assert code == 0, err
    assert json.loads(parts)["result"] == json.loads(whole)["result"]
    assert not unfinished.exists()


def test_finetune__what_is_under_way_stays_until_the_result_is_kept(
    run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    arguments = [
        "finetune", str(run), "--data", str(tmp_path / "photos"), "--labels=6/class",
        "--set=epochs=3", "--set=batch_size=6", "--set=warmup_epochs=1", "--json",
    ]  # fmt: skip
    code, out, err = command(*arguments)
    assert code == 0, err
    (kept,) = (run / "evaluations").glob("*.json")
    kept.unlink()
    kept.mkdir()  # in the way of the result
    assert command(*arguments)[0] == 2
    (under_way,) = (run / "evaluations" / "unfinished").iterdir()
    kept.rmdir()
    code, again, err = command(*arguments)
    assert code == 0, err
    assert json.loads(again)["result"] == json.loads(out)["result"]
    assert not under_way.exists()


def test_finetune__two_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    with tuned._under_way(tmp_path / "a") as first:
        assert first == tmp_path / "a"
        with (
            pytest.warns(Notice, match="cannot be used"),
            tuned._under_way(tmp_path / "a") as second,
        ):
            assert second is None
    with tuned._under_way(tmp_path / "a") as third:
        assert third == first
    assert not (tmp_path / "a").exists()


def test_finetune__another_task_begins_anew(run: Path) -> None:
    """Tasks of one set of images share images and rows, not what is under way."""
    quick = {"epochs": 2, "batch_size": 64, "warmup_epochs": 0}
    tasks = ("scenes-dist", "scenes-class", "scenes-count")
    subjects = [_open(fp.knn, run, "2/class", task=task, device="cpu") for task in tasks]
    settings = replace(PRESETS["small"], **quick)  # type: ignore[arg-type]
    rows = np.arange(8)
    drawn = Draws(Budget.parse("2/class"), [0], [rows])
    names = {tuned._name(subject, task, settings, drawn) for subject, task in subjects}
    assert len(names) == 3
    subject, task = subjects[0]
    assert tuned._name(subject, task, settings, drawn) in names
    for other in (replace(drawn, seeds=[1]), replace(drawn, rows=[rows + 1])):
        assert tuned._name(subject, task, settings, other) not in names
    half = replace(settings, precision="bfloat16")
    assert tuned._name(subject, task, half, drawn) not in names


def test_cache__other_weights_are_computed_anew(
    run: Path, tmp_path: Path, command: Command
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    data = tmp_path / "photos/train"

    def features(name: str) -> np.ndarray:
        out = tmp_path / name
        assert command("features", run, "--data", data, "--out", out)[0] == 0
        with np.load(out) as file:
            return file["features"]

    first = features("1.npz")
    np.testing.assert_array_equal(features("2.npz"), first)
    encoder = fp.load(run)
    torch.manual_seed(1)
    encoder.init_weights()
    save_encoder(run, encoder, {})
    assert np.abs(features("3.npz") - first).max() > 1e-3
    miniatures.save(data / "class-0/0.png", 2, 5)  # another picture under the same name
    assert np.abs(features("4.npz")[0] - features("3b.npz")[1]).max() > 1e-3
    with np.load(tmp_path / "3.npz") as old, np.load(tmp_path / "4.npz") as new:
        changed = np.abs(old["features"] - new["features"]).max(1) > 1e-3
    assert changed.sum() == 1


def test_table__own_figures_stand_beside_the_published(run: Path, command: Command) -> None:
    code, out, _ = command("table", "1", run)
    assert code == 0
    assert "60.3" in out
    config = (run / "config.yaml").read_text()
    config = config.replace("model: vit_nano", "model: vit_base").replace(
        "patch_size: 4", "patch_size: 16"
    )
    (run / "config.yaml").write_text(config.replace("image_size: 32", "image_size: 224"))
    found = {
        "task": "imagenet-1%", "method": "logistic", "protocol": "released-1%",
        "labels": "published 1% list", "encoder": "target", "result": {"accuracy": 61.5},
    }  # fmt: skip
    write_text((run / "evaluations").mkdir() or run / "evaluations/x.json", json.dumps(found))
    code, out, _ = command("table", "1", run, "--json")
    cells = {(row["kind"], row["model"]): row["cells"][0]["own"] for row in json.loads(out)["rows"]}
    assert cells.pop(("StoP", "B/16")) == 61.5
    assert set(cells.values()) == {None}
    assert "60.3 → 61.5 (+1.2)" in command("table", "1", run)[1]
    for unlike in ({"labels": "5%"}, {"variant": {"layers": 4}}, {"encoder": "context"}):
        write_text(run / "evaluations/x.json", json.dumps(found | unlike))
        assert "→" not in command("table", "1", run)[1]
    write_text(run / "evaluations/x.json", json.dumps(found))
    config = (run / "config.yaml").read_text()
    for changes in (
        {"noise_std": 0.6}, {"projection_norm": True}, {"positions": "sincos", "projection_l1": 0.1}
    ):  # fmt: skip
        (run / "config.yaml").write_text(yaml.safe_dump(yaml.safe_load(config) | changes))
        out = command("table", "1", run)[1]
        assert "→" not in out, changes  # no row is about such runs
        assert "has no evaluation that this table shows" in out
    (run / "config.yaml").write_text(yaml.safe_dump(yaml.safe_load(config) | {"target_layers": 6}))
    assert (
        f"{run} has masking=even, target_layers=6, unlike the paper"
        in command("table", "1", run, "--json")[1]
    )
    (run / "config.yaml").write_text(config)
    for broken in ({}, found | {"result": {"accuracy": "high"}}):
        write_text(run / "evaluations/x.json", json.dumps(broken))
        code, out, err = command("table", "1", run)
        assert (code, out) == (2, "")
        assert "x.json is no evaluation" in err
    assert command("table", "9")[0] == 2
    for number in json.loads(command("table", "--json")[1])["tables"]:
        assert command("table", number)[0] == 0


def test_table__says_by_which_reading_and_what_else_differs(tmp_path: Path) -> None:
    found = {
        "method": "probe", "protocol": "vissl-sgd", "labels": "all", "encoder": "target",
        "task": "cifar100", "result": {"accuracy": 70.0},
    }  # fmt: skip
    for name in ("ijepa", "stop"):
        (tmp_path / name / "evaluations").mkdir(parents=True)
        settings = settings_from({}, recipe=f"paper/{name}-vit-b16")
        (tmp_path / name / "config.yaml").write_text(settings.to_yaml())
        write_text(tmp_path / name / "evaluations/x.json", json.dumps(found))
    other = found | {"task": "cifar100@crop", "result": {"accuracy": 60.0}}
    write_text(tmp_path / "stop/evaluations/y.json", json.dumps(other))
    ijepa, stop = tmp_path / "ijepa", tmp_path / "stop"
    assert paper_table("4", [ijepa, stop]).remarks == [
        f"{ijepa}, CIFAR-100: by cifar100",
        f"{stop}, CIFAR-100: by cifar100; cifar100@crop gives 60.0",
        f"these runs differ in augmentation, too: {ijepa} crop, {stop} crop-flip-gray-blur",
    ]


@pytest.mark.parametrize(
    ("recipe", "number", "row"),
    [
        ("stop-vit-b16", "1", ("StoP", "B/16")),
        ("stop-vit-l16@sigma-as-variance", "1", ("StoP", "L/16")),
        ("stop-vit-h14", "1", ("StoP", "H/14")),
        ("stop-vit-h14@sigma-as-variance", "1", ("StoP", "H/14")),
        ("ijepa-vit-b16", "1", ("I-JEPA", "B/16")),
        ("ijepa-vit-l16", "1", ("I-JEPA", "L/16")),
        ("ijepa-vit-h14", "1", ("I-JEPA", "H/14")),
        ("ablation-vit-b16@table6-learned", "6", ("learned", "B/16")),
        ("ablation-vit-b16@table7-context", "7", ("StoP context only", "B/16")),
        ("ablation-vit-b16@table7-both", "7", ("StoP both", "B/16")),
        ("ablation-vit-b16@table8-bilinear", "8", ("x2 bilinear", "B/16")),
        ("ablation-vit-b16@table8-max", "8", ("x2 max-pool", "B/16")),
        ("ablation-vit-b16@dropout", "6", None),
        ("ablation-vit-b16@untied", "6", None),
    ],
)
def test_table__every_recipe_of_the_paper_has_its_row(
    recipe: str, number: str, row: tuple[str, str] | None, tmp_path: Path
) -> None:
    found = {
        "task": "imagenet-1%", "method": "logistic", "protocol": "released-1%",
        "labels": "published 1% list", "encoder": "target", "result": {"accuracy": 50.0},
    }  # fmt: skip
    (tmp_path / "evaluations").mkdir()
    write_text(tmp_path / "evaluations/x.json", json.dumps(found))
    (tmp_path / "config.yaml").write_text(settings_from({}, recipe=f"paper/{recipe}").to_yaml())
    rows = paper_table(number, [tmp_path]).rows
    shown = [(kind, model) for kind, model, cells in rows if cells[0].own == 50.0]
    assert shown == ([row] if row else [])


def test_probe__an_encoder_of_other_channels_gets_one_sentence(
    tmp_path: Path, command: Command
) -> None:
    miniatures.labelled_folder(tmp_path / "photos")
    for channels, sentence in ((5, "3 channels, expected 5"), (1, None)):
        encoder = fp.create_encoder("vit_nano", patch_size=4, image_size=32, in_channels=channels)
        run = tmp_path / f"run-{channels}"
        run.mkdir()
        save_encoder(run, encoder, {})
        arguments = ["knn", run, "--data", tmp_path / "photos", "--neighbours=3"]
        code, out, err = command(*arguments)
        if sentence is None:  # grey pictures of what is in colour
            assert code == 0, err
            continue
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert sentence in err
        code, out, err = command(
            "knn", run, "--task=scenes-count", "--data=scenes:40", "--neighbours=3"
        )
        assert (code, out) == (2, "")
        assert "3 channels, expected 5" in err


def test_cache__a_folder_that_takes_nothing_costs_a_line_not_the_result(
    run: Path, tmp_path: Path
) -> None:
    for label in range(2):
        (tmp_path / "data" / str(label)).mkdir(parents=True)
        for number in range(8):
            picture = miniatures.picture(label, number, (32, 32))
            Image.fromarray(picture).save(tmp_path / "data" / str(label) / f"{number}.png")
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "flexpredict", "knn", run, "--data", tmp_path / "data",
         "--neighbours=5", "--json"],
        capture_output=True, text=True,
        env=os.environ | {"FLEXPREDICT_CACHE": str(tmp_path / "file")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["accuracy"] > 50
    said = [line for line in done.stderr.splitlines() if "takes no more features" in line]
    assert said
    assert all(line.startswith("flexpredict: ") for line in said)
