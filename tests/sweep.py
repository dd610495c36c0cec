"""Runs to report on: three of a sweep, small, with evaluations whose numbers are known."""

from pathlib import Path
from typing import Any

import flexpredict as fp
from flexpredict.evaluate.results import Evaluation, write

NASTY = "_a$b$<script>alert(1)<"  # the name of a run, and no joke in a page or a figure
SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "steps": 4,
    "log_every": 1, "workers": 0, "device": "cpu",
}  # fmt: skip
SWEEP: dict[str, dict[str, Any]] = {
    "still": {"positions": "sincos", "seed": 0},
    NASTY: {"noise_std": 0.25, "seed": 0},
    "noisy-again": {"noise_std": 0.25, "seed": 1},
}
SCORES = {"still": 54.3, NASTY: 57.8125, "noisy-again": 56.0}


def make(root: Path, images: Path) -> list[Path]:
    for name, settings in SWEEP.items():
        fp.pretrain(images, root / name, **SMALL, **settings)
        one = Evaluation(
            task="cifar10", method="probe", protocol="default", encoder="target", layers=1,
            checkpoint="", result={"accuracy": SCORES[name], "std": 0.123},
        )  # fmt: skip
        write(root / name, one)
    return [root / name for name in SWEEP]
