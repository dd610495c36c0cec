"""What a measure can have as its key, before anything is trained for it."""

from pathlib import Path
from typing import Any

import miniatures
import numpy as np
import pytest

import flexpredict as fp
from flexpredict.api import studying
from flexpredict.api.studying import _METHODS, _numbers, numbers_of
from flexpredict.study.plan import Measure
from flexpredict.train.loop import Interrupted

LABELLED = {"task": "scenes-count", "data": "scenes:60"}
DRAWN = LABELLED | {"labels": 0.5, "draws": 2}
QUICK: dict[str, dict[str, Any]] = {
    "probe": DRAWN | {"epochs": 1},
    "logistic": DRAWN | {"protocol": "released-1%"},
    "knn": DRAWN | {"neighbours": 3},
    "finetune": DRAWN | {"settings": {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}},
    "video": {"task": "davis2017", "size": 64},
    "boxes": {},
    "shifts": LABELLED | {"distances": [1, 3]},
    "learnt": {},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    fp.pretrain(
        "scenes:16", out, model="vit_nano", patch_size=16, image_size=64, batch_size=8, steps=2,
        positions="stop", workers=0, device="cpu",
    )  # fmt: skip
    return out


@pytest.mark.parametrize("method", _METHODS)
def test_numbers__are_those_that_a_method_gives(method: str, run: Path, tmp_path: Path) -> None:
    options = dict(QUICK[method])
    if method == "video":
        miniatures.davis(tmp_path)
        options |= {"data": str(tmp_path), "out": str(tmp_path / "masks")}
    if method == "boxes":
        options["data"] = str(miniatures.boxes(tmp_path / "boxes.npz"))
    found = _numbers(_METHODS[method](run, device="cpu", **options))
    numbers = {name for name, value in found.items() if np.ndim(value) == 0}
    assert numbers == set(numbers_of(Measure(method=method, options=options)))


def test_stop__in_a_measure_is_no_measure_that_failed(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise Interrupted("stopped")

    monkeypatch.setattr(studying, "_measured", stopped)
    settings = {
        "data": pictures, "model": "vit_nano", "patch_size": 8, "image_size": 32, "steps": 1,
        "batch_size": 8, "workers": 0,
    }  # fmt: skip
    asked = [{"name": "x", "method": "finetune", "options": {}, "key": "accuracy"}]
    order = {"run": tmp_path / "run", "settings": settings, "measures": asked, "gauges": []}
    with pytest.raises(Interrupted):
        studying.make_trial(order)
