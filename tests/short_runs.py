"""Runs of some seconds, and what they left."""

import json
from pathlib import Path
from typing import Any

import torch

from flexpredict.engine import checkpoint

SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 8, "log_every": 1, "checkpoint_every": 3, "workers": 0, "lr": 2e-3, "ema": 0.9,
}  # fmt: skip


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def logged(run: Path, lines: int) -> bool:
    """Whether a run that another process may still write has come so far."""
    path = run / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") >= lines


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.newest(run)
    assert newest is not None
    return checkpoint.read_weights(newest / checkpoint.MODEL)


def assert_same(one: Path, two: Path) -> None:
    assert losses(one) == losses(two)
    first, second = weights(one), weights(two)
    assert all(torch.equal(first[name], second[name]) for name in first)


def command(images: Path, run: Path, *more: str) -> list[str]:
    """The words of a command line."""
    overrides = [f"--set={key}={value}" for key, value in SMALL.items()]
    return ["pretrain", str(images), "--out", str(run), "--device", "cpu", *overrides, *more]
