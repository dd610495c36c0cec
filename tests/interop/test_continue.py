"""Pretraining, fine-tuning and evaluations start from imported weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import miniatures
import numpy as np
import pytest
import synthetic
import torch
from conftest import Command
from safetensors.torch import save_file
from synthetic import SMALL

import flexpredict as fp
from flexpredict.build import build_objective, start_from
from flexpredict.config import read_settings, settings_from
from flexpredict.model.vit import is_sincos

ONE = SMALL["stop-b16"]
RUN: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 16, "image_size": 64, "batch_size": 16, "chunk_size": 8,
    "steps": 2, "log_every": 1, "workers": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def stop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported")
    synthetic.save(root / "x.pth.tar", ONE)
    fp.import_weights(root / "x.pth.tar", root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lone")
    save_file(synthetic.encoder(ONE, 7), root / "x.safetensors")
    fp.import_weights(root / "x.safetensors", root / "run")
    return root / "run"


def test_init__whole_or_without_predictor(stop: Path) -> None:
    fresh = build_objective(settings_from(RUN)).predictor.state_dict()
    for predictor in (True, False):
        settings = settings_from(RUN | {"form": "released", "init_predictor": predictor})
        objective = build_objective(settings)
        said = start_from(objective, settings, stop)
        assert said.endswith("the predictor is new") != predictor
        for part, seed in (("encoder", 0), ("target_encoder", 2)):
            given = synthetic.encoder(ONE, seed)
            found = objective.get_submodule(part).state_dict()
            assert all(torch.equal(found[name], given[name]) for name in given)
        given = synthetic.predictor(ONE, 1) if predictor else fresh
        found = objective.predictor.state_dict()
        assert all(torch.equal(found[name], given[name]) for name in given)


def test_init__places_are_those_of_this_grid(photos: Path, tmp_path: Path) -> None:
    """2×8 patches are as many as 4×4, and elsewhere."""
    wide = RUN | {"patch_size": 8, "image_size": (16, 64), "objective": "mae"}
    fp.pretrain(photos, tmp_path / "wide", **wide)
    for size, grid in ((32, (4, 4)), ((64, 16), (8, 2)), ((16, 64), (2, 8)), (64, (8, 8))):
        settings = settings_from(wide | {"image_size": size})
        objective = build_objective(settings)
        start_from(objective, settings, tmp_path / "wide")
        assert is_sincos(objective.encoder.pos_embed, grid)
        assert is_sincos(objective.predictor.predictor_pos_embed, grid)
        assert objective.encoder.sincos

    learned = wide | {"positions": "learned"}
    fp.pretrain(photos, tmp_path / "learned", **learned)
    settings = settings_from(learned | {"image_size": 32})
    with pytest.raises(ValueError, match="learned positions of a 2×8 grid, not of this one"):
        start_from(build_objective(settings), settings, tmp_path / "learned")


def test_init__no_run(tmp_path: Path, photos: Path, command: Command) -> None:
    code, _, err = command(
        "pretrain", photos, "--out", tmp_path / "run", "--init", tmp_path / "nowhere"
    )
    assert code == 2
    assert "nowhere is no run" in err
    assert not (tmp_path / "run").exists()


def test_init__a_predictor_goes_on_as_it_was_trained(stop: Path) -> None:
    def start(**other: Any) -> str:
        settings = settings_from(RUN | other)
        return start_from(build_objective(settings), settings, stop)

    with pytest.raises(ValueError, match=r"trained with form=released, not paper: set form="):
        start()
    assert start(init_predictor=False).endswith("the predictor is new")
    assert start(form="released", noise_std=0.25).endswith("target_encoder")
    assert start(form="released", noise_std=0.5).endswith("was trained with noise_std=0.25")
    assert start(positions="sincos").endswith("was trained with positions=stop")


def test_init__one_encoder_for_both_at_another_size(lone: Path) -> None:
    settings = settings_from(RUN | {"image_size": [96, 64]})
    objective = build_objective(settings)
    start_from(objective, settings, lone)
    given = synthetic.encoder(ONE, 7)
    for encoder in objective.encoders.values():
        assert torch.equal(encoder.norm.bias, given["norm.bias"])
        assert encoder.pos_embed.shape == (1, 24, 64)


@pytest.mark.parametrize("given", [{}, {"image_size": 32}])
def test_init__the_model_is_as_there_where_nobody_says(
    given: dict[str, int], stop: Path, pictures: np.ndarray, tmp_path: Path
) -> None:
    more: dict[str, Any] = {
        name: RUN[name] for name in ("batch_size", "chunk_size", "steps", "workers")
    }
    more |= {"masking": "random", "form": "released"}  # blocks want larger grids
    fp.pretrain(pictures, tmp_path / "run", init=str(stop), **more, **given)
    found = read_settings(tmp_path / "run" / "config.yaml")
    assert (found.model, found.patch_size, found.mean) == ("vit_nano", 16, None)
    assert found.image_size == given.get("image_size", 64)


def test_init__run_starts_there_and_resumes(
    stop: Path, pictures: np.ndarray, tmp_path: Path, command: Command, photos: Path
) -> None:
    whole = tmp_path / "whole"
    quick = RUN | {"lr_start": 1e-9, "lr": 1e-9, "lr_final": 1e-9, "ema": 1.0}
    fp.pretrain(pictures, whole, **quick, init=str(stop), form="released")
    moved = fp.load(whole).norm.bias - synthetic.encoder(ONE, 2)["norm.bias"]
    assert float(moved.abs().max()) < 1e-6
    assert read_settings(whole / "config.yaml").init == str(stop)
    assert fp.pretrain(
        pictures, whole, resume=True, **quick, init=str(stop), form="released"
    ).loss is None  # fmt: skip
    settings = [f"--set={key}={value}" for key, value in RUN.items()]
    code, out, err = command(
        "pretrain", photos, "--out", tmp_path / "other", "--init", stop, *settings, "--json",
        "--set=predictor_dim=64",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert "init_predictor=false" in err
    code, out, err = command(
        "pretrain", photos, "--out", tmp_path / "other", "--init", stop, *settings, "--json",
        "--set=init_predictor=false",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["steps"] == 2
    assert "the predictor is new" in err


def test_resume__of_an_import_says_how(stop: Path, pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(stop, run)
    fits = {"masking": "even", "batch_size": 16}
    settings = read_settings(run / "config.yaml").model_copy(update=fits)
    (run / "config.yaml").write_text(settings.to_yaml())
    with pytest.raises(ValueError, match=f"start one from it with --init {run}"):
        fp.pretrain(pictures, run, resume=True, **settings.model_dump(exclude={"data"}))


def test_evaluations__of_an_import(stop: Path, lone: Path, tmp_path: Path) -> None:
    miniatures.labelled_folder(tmp_path / "data")
    on: dict[str, Any] = {"train": tmp_path / "data/train", "test": tmp_path / "data/val"}
    for run, which in ((stop, "target"), (stop, "context"), (lone, "context")):
        assert fp.knn(run, encoder=which, neighbours=3, **on).result["accuracy"] > 50
        assert fp.logistic(run, encoder=which, **on).encoder == which
    tuned = fp.finetune(stop, settings={"epochs": 1, "batch_size": 8, "warmup_epochs": 0}, **on)
    assert tuned.method == "finetune"
    with pytest.raises(ValueError, match="holds one encoder, the context encoder"):
        fp.knn(lone, **on)


def test_figures__of_an_import(photos: Path, tmp_path: Path) -> None:
    """What A has learnt can be drawn of a released checkpoint."""
    synthetic.save(tmp_path / "x.pth.tar", ONE._replace(image=10 * ONE.patch))
    stop = tmp_path / "stop"
    fp.import_weights(tmp_path / "x.pth.tar", stop)
    found = fp.figures(stop, tmp_path / "figures", data=str(photos), only=["fig5"], device="cpu")
    assert list(found.drawn) == ["fig5"]
