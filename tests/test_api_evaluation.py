"""What the command line refuses is refused in Python, too, before anything is opened."""

from pathlib import Path
from typing import Any

import pytest

import flexpredict as fp


@pytest.mark.parametrize(
    ("method", "given", "sentence"),
    [
        ("knn", {"neighbors": 5}, "knn has no option 'neighbors': did you mean neighbours"),
        ("knn", {"image_sise": 48}, "knn has no option 'image_sise': did you mean image_size"),
        ("probe", {"dat": "x"}, "probe has no option 'dat': did you mean data"),
        (
            "finetune",
            {"epochs": 1},
            "finetune has no option 'epochs': it takes data, device",
        ),
        ("knn", {"neighbours": 0}, "neighbours=0: expected a whole number, at least 1"),
        ("knn", {"temperature": 0}, "temperature=0: expected more than 0"),
        ("knn", {"layers": 0}, "layers=0"),
        ("logistic", {"draws": 0}, "draws=0"),
        ("probe", {"epochs": 0}, "epochs=0"),
        ("finetune", {"draws": -1}, "draws=-1"),
        ("boxes", {"layers": 0}, "layers=0"),
        ("shifts", {"distances": []}, r"distances=\[\]: expected pixels, at least 1 each"),
        ("shifts", {"distances": [4, -1]}, r"distances=\[4, -1\]"),
    ],
)
def test_evaluation__refuses_what_makes_no_sense(
    method: str, given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    where = {"data": "scenes"} if "dat" not in given else {}
    with pytest.raises(ValueError, match=f"^{sentence}"):
        getattr(fp, method)(tmp_path / "no run", **where, **given)


def test_features__refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layers=0"):
        fp.features(tmp_path, "scenes", layers=0)
    encoder = fp.create_encoder("vit_nano", patch_size=8, image_size=32)
    with pytest.raises(ValueError, match="resize='foo': choose one of recompute, interpolate"):
        encoder.positions((5, 5), resize="foo")  # type: ignore[arg-type]
