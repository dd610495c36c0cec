"""The command line as people and scripts use it: exit codes, sentences, one JSON object."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command

import flexpredict as fp
from flexpredict import cli
from flexpredict.config import settings_from
from flexpredict.notice import Notice
from flexpredict.version import VERSION

FAST = [
    "--set=model=vit_nano", "--set=patch_size=4", "--set=image_size=32", "--set=batch_size=16",
    "--set=steps=3", "--set=workers=0",
]  # fmt: skip


def test_pretrain_and_features__from_the_shell(
    photos: Path, tmp_path: Path, command: Command
) -> None:
    run, out = tmp_path / "run", tmp_path / "features.npz"
    code, text, _ = command("pretrain", str(photos), "--out", str(run), *FAST, "--json")
    assert code == 0
    assert json.loads(text)["steps"] == 3
    code, text, _ = command("features", str(run), "--data", str(photos), "--out", str(out),
        "--layers", "2", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(text) == {
        "out": str(out), "images": 96, "width": 128, "encoder": "target", "left_out": {},
    }  # fmt: skip
    with np.load(out) as file:
        assert file["features"].shape == (96, 128)
        assert file["classes"].tolist() == ["left", "right"]
        assert len(file["names"]) == len(file["labels"]) == 96
    code, text, err = command("pretrain", "--out", str(run), "--resume")
    assert code == 0
    assert "Nothing was left to do" in text
    assert "holds no run yet" not in err
    code, _, err = command("pretrain", str(photos), "--out", str(run) + "n", *FAST, "--resume")
    assert code == 0
    assert "holds no run yet: a new one begins" in err


def test_features__broken_files_are_left_out_and_named(
    photos: Path, tmp_path: Path, command: Command
) -> None:
    run, out = tmp_path / "run", tmp_path / "features.npz"
    photos = shutil.copytree(photos, tmp_path / "photos")
    assert command("pretrain", photos, "--out", run, *FAST)[0] == 0
    files = sorted(photos.rglob("*.png"))
    files[0].write_bytes(b"no image")
    words = ["features", run, "--data", photos, "--out"]
    with warnings.catch_warnings():
        warnings.simplefilter("default", Notice)
        code, text, err = command(*words, out, "--json")
    assert code == 0
    assert "flexpredict: 1 of 96 images cannot be used and are left out" in err
    name = str(files[0].relative_to(photos))
    assert json.loads(text)["left_out"] == {name: "it is no image of a known kind"}
    with np.load(out) as file:
        assert len(file["features"]) == len(file["names"]) == len(file["labels"]) == 95
        assert name not in file["names"]
        assert np.isfinite(file["features"]).all()
    for path in files:
        path.write_bytes(b"no image")
    code, _, err = command(*words, tmp_path / "none.npz")
    assert code == 2
    assert "none of 96 images can be used" in err
    assert not (tmp_path / "none.npz").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", "--outt", "x"], "--outt"),
        (["bench", "maybe"], "maybe"),
        (["study", "table6", "--jobs", "many"], "--jobs"),
        (["probe"], "run"),
        (["nothing"], "nothing"),
        (["pretrain", "photos/", "lr=1"], "--set key=value"),
    ],
)
def test_wrong_words__one_sentence_exit_2(words: list[str], said: str, command: Command) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith("flexpredict: ")
    assert err.count("\n") == 1
    assert said in err.lower()
    assert err.endswith(" --help\n")


def test_no_words__show_help(command: Command) -> None:
    for words in ([], ["data"]):
        code, out, err = command(*words)
        assert code == 2
        assert "Usage: " in out + err
    code, out, _ = command("--version")
    assert (code, out) == (0, f"flexpredict {VERSION}\n")


def test_interrupted__says_so(
    photos: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real signal to this very process, in the middle of a command."""

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # may be off in CI
    monkeypatch.setattr("flexpredict.cli.data.inspect", interrupted)
    try:
        code, _, err = command("data", "inspect", photos)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert err.endswith("before it was done; what keeps its work goes on if asked again\n")


def test_wrong_input__one_sentence_exit_2_nothing_written(
    photos: Path, tmp_path: Path, command: Command
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    (full / "old.npz").write_text("features of last year")
    new = str(tmp_path / "new")
    train = ["pretrain", str(photos), "--out", new, *FAST]
    features = ["features", str(empty), "--data", str(photos), "--out"]
    cases = {
        "no such folder": ["pretrain", str(tmp_path / "nowhere"), "--out", new, *FAST],
        "holds no images": ["pretrain", str(empty), "--out", new, *FAST],
        "no images were named": ["pretrain", "--out", new, *FAST],
        "did you mean noise_std": [*train, "--set=noise_st=1"],
        "batch_size='x' does not fit": [*train, "--set=batch_size=x"],
        "does not divide into patches of 5": [*train, "--set=patch_size=5"],
        "fill a batch of 500": [*train, "--set=batch_size=500"],
        "is not known": [*train, "--model", "resnet"],
        "there is no recipe": [*train, "--recipe", "best"],
        "a grid of at least 4x4 patches, not 2x2": [*train, "--set=patch_size=16"],
        "is not empty and holds no run": ["pretrain", str(photos), "--out", str(full), *FAST],
        "cannot be written": ["pretrain", str(photos), "--out", "/proc/run", *FAST],
        "there is no device 'gpu'": [*train, "--device", "gpu"],
        "device 'xpu' cannot be used: choose cpu": [*train, "--device", "xpu"],
        "--epochs is no option but a setting: --set epochs=…": [*train, "--epochs", "3"],
        "there is no setting 'out'": [*train, "--set=out=elsewhere"],
        "holds something other than a demo": ["demo", "--out", str(full)],
        "exists already": [*features, str(full / "old.npz")],
        "is no run": [*features, str(tmp_path / "f.npz")],
        "written to a .npz file": [*features, "f.csv"],
        "there is no folder": [*features, "no/f.npz"],
        "thesis.tex/study cannot be read or written: Not a directory": [
            "study",
            "table6",
            "--out",
            str(full / "thesis.tex" / "study"),
        ],
    }
    for sentence, arguments in cases.items():
        code, out, err = command(*arguments)
        assert code == 2, (sentence, err)
        assert sentence in err
        assert err.startswith("flexpredict: ")
        assert err.count("\n") == 1, err
        assert out == ""
    assert not Path(new).exists()
    assert (full / "thesis.tex").read_text() == "years of work"
    assert list(empty.iterdir()) == []


def test_pretrain__data_by_set_and_rotten_images_in_a_worker(
    photos: Path, tmp_path: Path, command: Command
) -> None:
    out = ["--out", str(tmp_path / "run"), *FAST]
    code, _, _ = command("pretrain", f"--set=data={photos}", *out)
    assert code == 0
    rotten = tmp_path / "rotten"
    rotten.mkdir()
    for index in range(20):
        (rotten / f"{index}.png").write_bytes(b"nothing")
    out = ["--out", str(tmp_path / "other"), *FAST, "--set=workers=1"]
    code, _, err = command("pretrain", str(rotten), *out)
    assert code == 2
    assert "20 images in a row cannot be used; the first is" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_recipes__listed_and_printed(command: Command) -> None:
    code, text, _ = command("recipes")
    assert code == 0
    assert "paper/ablation-vit-b16@table7-context" in text
    code, text, _ = command("recipes", "paper/stop-vit-h14", "--json")
    assert json.loads(text)["patch_size"] == 14


@pytest.mark.parametrize(
    "name",
    [one.name or one.callback.__name__ for one in cli.app.registered_commands if not one.hidden],
)
def test_help__shows_an_example(name: str, command: Command) -> None:
    code, text, _ = command(name, "--help")
    assert code == 0
    assert f"Example: flexpredict {name}" in text


def test_help__has_the_order_of_the_work(command: Command) -> None:
    code, text, _ = command("--help")
    shown = [line.split()[1] for line in text.splitlines() if line[:2] == "│ " and line[2:3] != " "]
    assert code == 0
    assert [name for name in shown if not name.startswith("--")] == [
        name for names in cli.PANELS.values() for name in names
    ]


def test_module__runs_as_a_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flexpredict", "pretrain", str(tmp_path / "nowhere")],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_memory__that_runs_out_gets_what_helps(
    error: Exception, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(fp, "pretrain", fails)
    code, _, err = command("pretrain", "scenes")
    assert code == 1
    assert err.startswith("flexpredict: memory ran out: to pretrain, lower batch_size, or go on")
    assert err.count("\n") == 1


def test_image_size__as_one_says_it() -> None:
    said = [settings_from({"image_size": size}).image_size for size in ("48x96", [48, 96], 64)]
    assert said == [(48, 96), (48, 96), 64]
    with pytest.raises(ValueError, match="image_size"):
        settings_from({"image_size": "48by96"})
