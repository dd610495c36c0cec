"""What a file tells about its training."""

import json
import math
from pathlib import Path

import numpy as np
import synthetic
import torch
from conftest import Command
from synthetic import SMALL

import flexpredict as fp


def test_inspect__released(tmp_path: Path) -> None:
    for name, world in (("stop-b16", 1), ("ijepa-h14", 16)):
        path = tmp_path / f"{name}.pth.tar"
        content = synthetic.save(path, SMALL[name], world_size=world)
        found = {one.what: one for one in fp.inspect_weights(path)}
        stop = name == "stop-b16"
        assert found["world_size"].value == world
        assert ("item 11 held" in found["world_size"].says) == (world == 1)
        assert found["parameters without optimiser state"].value == (3 if stop else 2)
        assert found["order of keys"].says == (
            "as StoP's code registers them" if stop else "as I-JEPA's code registers them"
        )
        assert "seems never to have been trained" in found["norm of mask_token"].says
        a = content["predictor"]["module.predictor_embed.weight"]
        assert math.isclose(found["norm of A"].value, float(a.norm()), rel_tol=1e-6)
        assert math.isclose(found["eigenvalues of A Aᵀ"].value[0], float(
            torch.linalg.matrix_norm(a, 2) ** 2), rel_tol=1e-5)  # fmt: skip
        assert "of full rank" in found["effective rank of A Aᵀ"].says
        assert found["patch embedding"].value == [64, 3, 16 if stop else 14, 16 if stop else 14]
        assert found["optimiser steps"].value == 9


def test_inspect__trained_mask_token(tmp_path: Path, command: Command) -> None:
    content = synthetic.released(SMALL["ijepa-g16"])
    content["predictor"]["module.mask_token"] *= 5
    torch.save(content, tmp_path / "x.pth.tar")
    code, out, _ = command("import", tmp_path / "x.pth.tar", "--inspect")
    assert code == 0
    assert "so it was trained" in out
    code, out, _ = command("import", tmp_path / "x.pth.tar", "--inspect", "--json")
    found = json.loads(out)["findings"]
    assert {"what": "batch_size", "value": 64, "says": "images of one process"} in found


def test_inspect__one_encoder(tmp_path: Path) -> None:
    torch.save(synthetic.encoder(SMALL["ijepa-h14"], 0), tmp_path / "x.pth")
    found = {one.what: one.value for one in fp.inspect_weights(tmp_path / "x.pth")}
    assert found["layout"] == "timm"
    assert found["positions"] == [1, 16, 64]


def test_inspect__of_our_own_nothing_is_guessed_that_is_known(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    fp.pretrain(
        pictures, tmp_path / "run", model="vit_nano", patch_size=8, image_size=32, steps=2,
        batch_size=8, device="cpu", workers=0,
    )  # fmt: skip
    fp.export(tmp_path / "run", tmp_path / "moved", to="torch")
    found = {one.what: one for one in fp.inspect_weights(tmp_path / "moved" / "checkpoint.pth.tar")}
    assert found["layout"].value == "flexpredict"
    assert not any(one.says.startswith("item") for one in found.values())
    assert found["norm of mask_token"].says == ""
    assert "order of keys" not in found
