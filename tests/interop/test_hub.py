"""Folders to and from the hub, or a folder of one's own; nothing here goes out to the network."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import synthetic
import torch
from conftest import Command
from safetensors.torch import save_file
from synthetic import SMALL

import flexpredict as fp


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    save_file(synthetic.encoder(SMALL["ijepa-h14"], 3), tmp_path / "x.safetensors")
    fp.import_weights(tmp_path / "x.safetensors", tmp_path / "run", encoder="target")
    return fp.export(tmp_path / "run", tmp_path / "exported", "timm").folder


def test_push_pull__a_folder_of_ones_own(exported: Path, tmp_path: Path, command: Command) -> None:
    shelf = tmp_path / "shelf" / "mine"
    shelf.parent.mkdir()
    code, out, _ = command("push", exported, shelf)
    assert (code, out.strip()) == (0, str(shelf))
    code, _, err = command("push", exported, shelf)
    assert code == 2
    assert "not empty" in err
    code, _, err = command("push", exported, exported / "inner")
    assert code == 2
    assert "choose a place outside" in err
    code, _, err = command("push", tmp_path, tmp_path / "else")
    assert "is no exported folder" in err
    assert command("pull", shelf, "--out", tmp_path / "back")[0] == 0
    fp.import_weights(tmp_path / "back", tmp_path / "again")
    images = torch.zeros(1, 3, 56, 56)
    one, two = fp.load(tmp_path / "run"), fp.load(tmp_path / "again")
    assert torch.equal(one.features(images), two.features(images))


def test_push_pull__the_hub(
    exported: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = importlib.import_module("huggingface_hub")
    seen: dict[str, Any] = {}

    class Api:
        files = ("model.safetensors", "pytorch_model.bin")

        def list_repo_files(self, name: str, **_: Any) -> tuple[str, ...]:
            if name == "me/nothing":
                raise LookupError("no way there")  # as libraries below the hub's may
            return self.files

        def create_repo(self, name: str, **how: Any) -> None:
            seen["made"] = (name, how)

        def upload_folder(self, **what: Any) -> str:
            seen["sent"] = what
            return f"https://hub/{what['repo_id']}"

    def snapshot(name: str, *, local_dir: Path, allow_patterns: list[str], **_: Any) -> None:
        seen["pickles"] = "pytorch_model*.bin" in allow_patterns
        if name != "me/mine":
            raise OSError("no such model\nlong story")
        local_dir.mkdir()
        seen["got"] = name

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    code, out, _ = command("push", exported, "me/mine", "--private")
    assert (code, out) == (0, "https://hub/me/mine\n")
    assert seen["made"] == ("me/mine", {"private": True, "exist_ok": True})
    assert seen["sent"]["folder_path"] == exported
    assert command("pull", "me/mine", "--out", tmp_path / "got")[0] == 0
    assert not seen["pickles"]
    monkeypatch.setattr(Api, "files", ("pytorch_model.bin",))
    assert command("pull", "me/mine", "--out", tmp_path / "again")[0] == 0
    assert seen["pickles"]
    code, _, err = command("pull", "me/nothing", "--out", tmp_path / "not")
    assert (code, err) == (1, "flexpredict: me/nothing could not be fetched: no way there\n")
    code, _, err = command("pull", "me/other", "--out", tmp_path / "not")
    assert code == 1
    assert err == "flexpredict: me/other could not be fetched: no such model\n"
    code, _, err = command("pull", "a/b/c", "--out", tmp_path / "c")
    assert (code, err.count("\n")) == (2, 1)
    assert "a/b/c is no model of the hub: expected owner/name, or a path as ./a/b/c" in err
