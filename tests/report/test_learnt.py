"""What a study notes of A and of predictions is what the figures say."""

import json
from pathlib import Path

import numpy as np
import pytest

import flexpredict as fp
from flexpredict.report.learnt import learnt
from flexpredict.report.runs import read_run


@pytest.mark.parametrize("place", [0, 1], ids=["sincos", "stop"])
def test_learnt__agrees_with_the_figures(runs: list[Path], place: int, tmp_path: Path) -> None:
    run = read_run(runs[place])
    found = learnt(run)
    only = ["fig5", "fig6", "spectrum", "frequencies", "likeness"]
    fp.figures([run.path], tmp_path / "figures", only=only, device="cpu")
    figures = json.loads((tmp_path / "figures" / "figures.json").read_text())["figures"]
    numbers = {name: one["numbers"] for name, one in figures.items()}

    ranks = [numbers["spectrum"][name]["effective_rank"] for name in numbers["spectrum"]]
    assert found["effective_rank"] == pytest.approx(ranks[0])
    assert found["rank_kept"] == pytest.approx(ranks[0] / ranks[1])
    (own,) = numbers["likeness"]["pairs"].values()
    assert found["own_beginning"] == pytest.approx(own)
    axes = numbers["frequencies"][run.name].values()
    growth = np.mean([axis["over_untrained"] for axis in axes], axis=0)
    half = len(growth) // 2
    assert found["short_waves"] == pytest.approx(growth[:half].mean() / growth[half:].mean())
    noisy = numbers["fig5"][run.name]
    if place == 0:
        assert found["own_place"] == 100
        assert found["displaced"] == noisy["patches"] == 0
    else:  # other draws
        assert found["displaced"] == pytest.approx(noisy["patches"], rel=0.1)
        assert found["own_place"] == pytest.approx(100 * noisy["nearest_is_query"], rel=0.1)
    seen = numbers["fig6"][run.name]["0.1"]
    assert found["neighbourhood_mass"] == pytest.approx(100 * seen["neighbourhood_mass"])
    assert found["look"] == pytest.approx(seen["mean_distance"])


def test_learnt__noise_that_ends_is_seen_as_it_is_then(tmp_path: Path) -> None:
    small = {"recipe": "demo", "data": "scenes:32", "steps": 4, "positions": "annealed"}
    fp.pretrain(out=tmp_path / "fades", noise_std=50.0, **small)  # type: ignore[arg-type]
    fp.pretrain(out=tmp_path / "grows", noise_std=1e-4, noise_std_final=50.0, **small)  # type: ignore[arg-type]
    assert learnt(read_run(tmp_path / "fades"))["displaced"] == 0
    assert learnt(read_run(tmp_path / "grows"))["displaced"] > 1
