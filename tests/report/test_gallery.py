"""Figures of real runs: the numbers behind them, what is written, what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from PIL import Image
from safetensors.torch import load_file
from sweep import NASTY, SCORES, SMALL

import flexpredict as fp
from flexpredict.report import of_images, of_runs
from flexpredict.report.analysis.sweep import series
from flexpredict.report.figures.style import to_png, to_svg
from flexpredict.report.gallery import NAMES, draw_figures
from flexpredict.report.images import Images, find_images
from flexpredict.report.runs import NotDrawn, Run, read_runs


@pytest.fixture(scope="module")
def drawn(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "figures"
    fp.figures(runs, out, device="cpu")
    return out


@pytest.fixture(scope="module")
def numbers(drawn: Path) -> dict[str, Any]:
    return dict(json.loads((drawn / "figures.json").read_text()))


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "step-00000004" / "model.safetensors")


def test_figures__all_are_written_in_both_formats(drawn: Path, numbers: dict[str, Any]) -> None:
    assert list(numbers["figures"]) == NAMES
    assert numbers["skipped"] == {}
    for name in NAMES:
        with Image.open(drawn / f"{name}.png") as image:
            assert image.width > 300
        text = (drawn / f"{name}.svg").read_text()
        assert text.startswith("<?xml")
        assert "<script" not in text
    assert {path.stem for path in drawn.iterdir()} == {*NAMES, "figures"}


def test_svg__keeps_text_as_text(drawn: Path) -> None:
    """Names with dollars and underscores are no formulas, and none is left out of a legend."""
    text = (drawn / "spectrum.svg").read_text()
    assert "_a$b$&lt;script&gt;alert(1)&lt;</text>" in text
    assert "eigenvalue of A Aᵀ</text>" in text


def test_figure3__shows_the_evaluations(numbers: dict[str, Any]) -> None:
    (lines,) = numbers["figures"]["fig3"]["numbers"].values()
    still, noisy = lines["learned covariance"]
    assert still["noise_std"] == 0
    assert still["values"] == {"still": SCORES["still"]}
    assert still["std"] is None
    assert noisy["values"] == {name: SCORES[name] for name in (NASTY, "noisy-again")}
    assert noisy["mean"] == pytest.approx((57.8125 + 56) / 2)
    assert noisy["std"] == pytest.approx(np.std([57.8125, 56.0], ddof=1))


def test_figure4__shows_the_weights(numbers: dict[str, Any], runs: list[Path]) -> None:
    found = numbers["figures"]["fig4"]["numbers"]
    l1 = {}
    for run in runs:
        weights = _weights(run)
        A, token = weights["predictor.predictor_embed.weight"], weights["predictor.mask_token"]
        sizes = found["runs"][run.name]
        l1[run.name] = float(A.abs().sum())
        assert sizes["l1_A"] == pytest.approx(l1[run.name], rel=1e-6)
        assert sizes["norm_A"] == pytest.approx(float(A.norm()), rel=1e-6)
        assert sizes["l1_token"] == pytest.approx(float(token.abs().sum()), rel=1e-6)
        # rms over channels of A n is noise_std · ‖A‖ / √P, that of sin-cos positions is √½
        std = 0.0 if run.name == "still" else 0.25
        ratio = std * float(A.norm()) / np.sqrt(len(A)) / np.sqrt(0.5)
        assert sizes["noise_to_position"] == pytest.approx(ratio, rel=1e-5)
    for point in found["normalised"]["A"]["learned covariance"]:
        for name, value in point["values"].items():
            assert value == pytest.approx(l1[name] / max(l1.values()), rel=1e-6)


def test_figure5__deterministic_positions_stay(numbers: dict[str, Any]) -> None:
    found = numbers["figures"]["fig5"]["numbers"]
    assert found["still"] == {"nearest_is_query": 1, "patches": 0}


def test_what_a_learnt__against_untrained(numbers: dict[str, Any], runs: list[Path]) -> None:
    found = numbers["figures"]["spectrum"]["numbers"]
    assert [name for name in found if "untrained" in name] == [
        "untrained, seed 0", "untrained, seed 1",
    ]  # fmt: skip
    A = _weights(runs[1])["predictor.predictor_embed.weight"].double()
    direct = torch.linalg.eigvalsh(A @ A.T).flip(0)
    np.testing.assert_allclose(found[NASTY]["eigenvalues"], direct, rtol=1e-5, atol=1e-8)
    noise = numbers["figures"]["frequencies"]["numbers"][NASTY]
    variances = 0.25**2 * (A @ A.T).diag().view(2, 2, -1).mean(1)
    np.testing.assert_allclose(noise["row"]["variance"], variances[1], rtol=1e-5)
    likeness = numbers["figures"]["likeness"]["numbers"]
    alike = likeness["pairs"]
    # Four steps change little: a run is like its own beginning, and like no other seed's.
    assert alike[f"untrained, seed 0 | {NASTY}"] > 0.5
    assert abs(alike[f"untrained, seed 1 | {NASTY}"]) < 0.25
    own = [
        alike[f"untrained, seed {seed} | {run.name}"]
        for seed, run in zip((0, 0, 1), runs, strict=True)
    ]
    assert likeness["means"] == {
        "same settings, other seed": alike[f"noisy-again | {NASTY}"],
        "own beginning": pytest.approx(np.mean(own)),
        "two untrained": alike["untrained, seed 1 | untrained, seed 0"],
    }


def test_figure6__numbers_are_shares_and_distances(numbers: dict[str, Any]) -> None:
    for run in numbers["figures"]["fig6"]["numbers"].values():
        for found in run.values():
            assert 0 <= found["neighbourhood_mass"] <= 1
            assert 0 < found["mean_distance"] < np.hypot(7, 7)
        # Colder maps differ more from an even one.
        spread = [abs(run[t]["mean_distance"] - run[t]["even_mean_distance"]) for t in ("1", "0.1")]
        assert spread[1] > spread[0]


def test_neighbours__of_a_picture_that_is_there_twice(tmp_path: Path, images: Path) -> None:
    """The copy is the nearest, and no picture is its own neighbour."""
    folder = tmp_path / "twice"
    shutil.copytree(images, folder)
    for path in sorted(folder.iterdir()):
        shutil.copy(path, folder / f"{path.name}-again.png")
    fp.pretrain(images, tmp_path / "run", **SMALL)
    run = read_runs([tmp_path / "run"])
    found = of_images.neighbours(run, Images(folder)).numbers["run"]
    for image, near in found.items():
        assert image not in near
        assert near[0].removesuffix("-again.png") == image.removesuffix("-again.png")


def test_images__broken_ones_are_left_out(tmp_path: Path, images: Path, runs: list[Path]) -> None:
    folder = tmp_path / "some"
    shutil.copytree(images, folder)
    first = min(folder.iterdir())
    first.write_bytes(b"no picture")
    opened = read_runs(runs[:1])
    assert Images(folder).rows(opened[0], 1000).tolist() == list(range(1, 24))
    for path in folder.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="can be read with the 3 channels of"):
        find_images(opened, folder)


def test_images__gone_since_the_run_are_no_failure(runs: list[Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(runs[0], moved)
    config = moved / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("data:")]
    config.write_text("\n".join([*lines, "data: /nowhere"]))
    reason = find_images(read_runs([moved]), None)
    assert isinstance(reason, str)
    assert "/nowhere" in reason
    config.write_text("\n".join(lines))
    reason = find_images(read_runs([moved]), None)
    assert isinstance(reason, str)
    found = draw_figures(read_runs([moved]), reason)
    assert "fig5" in found.drawn
    assert all("name some with --data" in found.skipped[name] for name in of_images.FROM_IMAGES)


def test_mae__has_no_figure_6_but_the_rest(images: Path, tmp_path: Path) -> None:
    fp.pretrain(images, tmp_path / "mae", objective="mae", **SMALL)
    found = fp.figures(tmp_path / "mae", tmp_path / "out", formats=[], device="cpu")
    assert "predict pixels" in found.skipped["fig6"]
    assert "at least two runs of one size" in found.skipped["fig4"]
    assert {"pca", "attention", "neighbours", "fig5", "masks"} <= set(found.drawn)


def test_released_form__b_stands_in_for_the_token(images: Path, tmp_path: Path) -> None:
    fp.pretrain(images, tmp_path / "released", form="released", **SMALL)
    fp.pretrain(images, tmp_path / "fixed", positions="fixed", noise_std=1.0, **SMALL)
    runs = read_runs([tmp_path / "released", tmp_path / "fixed"])
    sizes = of_runs.figure4(runs).numbers["runs"]
    bias = _weights(tmp_path / "released")["predictor.predictor_embed.bias"]
    assert sizes["released"]["l1_token"] == pytest.approx(float(bias.abs().sum()))
    # Fixed noise does not go through A: its rms is noise_std.
    assert sizes["fixed"]["noise_to_position"] == pytest.approx(1 / np.sqrt(0.5), rel=1e-5)


def test_untrained__a_matrix_of_the_noises_own_is_another(images: Path, tmp_path: Path) -> None:
    """Of one seed, drawn together: each run is compared with its own beginning."""
    fp.pretrain(images, tmp_path / "tied", **SMALL)
    fp.pretrain(images, tmp_path / "untied", tied=False, **SMALL)
    fp.pretrain(images, tmp_path / "fixed", positions="fixed", **SMALL)
    for order in (("tied", "untied", "fixed"), ("fixed", "untied", "tied")):
        runs = read_runs([tmp_path / name for name in order])
        pairs = of_runs.likeness(runs).numbers["pairs"]
        assert pairs["untrained, seed 0 | tied"] > 0.5  # after a few steps
        assert pairs["untrained, seed 0, the noise's own | untied"] > 0.5
        assert abs(pairs["untrained, seed 0, the noise's own | tied"]) < 0.3
    # Fixed noise is not shaped by A, and so not among what A does to noise.
    assert set(of_runs.frequencies(runs).numbers) == {"tied", "untied"}
    assert "fixed" not in of_runs.correlations(runs).numbers
    with pytest.raises(NotDrawn, match="which no matrix shapes"):
        of_runs.correlations(runs[:1])


def test_figure4__models_of_unlike_size_are_not_measured_by_each_other(
    images: Path, tmp_path: Path
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "a": {}, "b": {"noise_std": 1.0}, "wide": {"predictor_dim": 64},
        "asked": {"positions": "conditioned"},  # whose noise is not that of one matrix
    }  # fmt: skip
    for name, more in changes.items():
        fp.pretrain(images, tmp_path / name, **SMALL | more)
    found = of_runs.figure4(read_runs([tmp_path / name for name in changes]))
    assert "noise_to_position" in found.numbers["runs"]["a"]
    assert "noise_to_position" not in found.numbers["runs"]["asked"]
    shares = [
        value
        for points in found.numbers["normalised"]["A"].values()
        for point in points
        for value in point["values"].items()
    ]
    assert dict(shares)["wide"] == 1.0
    assert max(share for name, share in shares if name != "wide") == 1.0


def test_figures__of_rectangular_images_of_one_channel(images: Path, tmp_path: Path) -> None:
    unlike = SMALL | {"image_size": (32, 48), "in_channels": 1}
    fp.pretrain(images, tmp_path / "grey", **unlike)
    fp.pretrain(images, tmp_path / "square", **SMALL)
    runs = [tmp_path / "grey", tmp_path / "square"]
    found = fp.figures(runs, tmp_path / "out", formats=[], device="cpu")  # of unlike grids, too
    assert set(NAMES) - set(found.drawn) == {"fig3", "fig4"}
    coverage = found.drawn["masks"].numbers
    assert [len(one["target"]["by_column"]) for one in coverage.values()] == [12, 8]


def test_runs__of_one_name_are_called_by_their_paths(runs: list[Path], tmp_path: Path) -> None:
    pair = [tmp_path / folder / "run" for folder in ("a", "b")]
    for path in pair:
        shutil.copytree(runs[0], path)
    assert [run.name for run in read_runs([*pair, runs[0]])] == [*map(str, pair), "still"]


def _run(name: str, **settings: Any) -> Run:
    return Run(Path(name), name, fp.Settings(**settings))


def test_series__kinds_of_noise_share_what_has_none() -> None:
    sweep = [
        _run("none", positions="sincos"),
        _run("zero", noise_std=0.0, seed=1),
        _run("low", noise_std=0.1),
        _run("high", noise_std=0.5),
        _run("fixed", positions="fixed", noise_std=0.5),
        _run("unscored", noise_std=0.2),
    ]
    values = {"none": 1.0, "zero": 3.0, "low": 4.0, "high": 5.0, "fixed": 6.0}
    found = series(sweep, values)
    means = {kind: [(p.at, p.mean) for p in points] for kind, points in found.items()}
    assert means["learned covariance"] == [(0, 2), (0.1, 4), (0.5, 5)]
    assert means["fixed covariance"] == [(0, 2), (0.5, 6)]
    other = series([*sweep, _run("wide", noise_std=0.1, model="vit_tiny")], values | {"wide": 9.0})
    assert [p.mean for p in other["learned covariance, model=vit_tiny"]] == [9]
    assert [p.mean for p in other["learned covariance, model=vit_small"]] == [2, 4, 5]
    lows = [
        _run(f"low {n}", noise_std=0.1, low_resolution="max", lr=2.0 + n, ema=0.1 * n, seed=n)
        for n in range(3)
    ]
    scores = {run.name: float(place) for place, run in enumerate(lows)} | {"plain": 9.0}
    apart = series([*lows, _run("plain", noise_std=0.1, lr=2.0, ema=0.0)], scores)
    assert all(len(point.values) == 1 for points in apart.values() for point in points)
    odd = {"lr": 1.0, "ema": 0.5, "betas": (0.5, 0.5)}
    many = series([*sweep, _run("odd", noise_std=0.1, **odd)], values | {"odd": 9.0})
    assert [p.mean for p in many["learned covariance"]] == [2, 4, 5]  # the usual is not said
    assert "learned covariance, lr=1.0, betas=(0.5, 0.5), ema=0.5" in many


def test_wrong_input__one_sentence_exit_2_nothing_lost(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "thesis.html").write_text("years of work")
    begun, silent = tmp_path / "begun", tmp_path / "silent"
    shutil.copytree(runs[0], begun)
    shutil.rmtree(begun / "checkpoints")
    shutil.copytree(runs[0], silent)
    (silent / "metrics.jsonl").unlink()
    edited = tmp_path / "edited"
    shutil.copytree(runs[0], edited)
    config = edited / "config.yaml"
    config.write_text(config.read_text().replace("vit_nano", "vit_tiny"))
    run, new = runs[0], tmp_path / "new"
    cases = {
        "is no run": ["figures", empty, "--out", new],
        "has no checkpoint: they are made every": [
            "figures",
            begun,
            "--only",
            "fig5",
            "--out",
            new,
        ],
        "the run has not logged yet": ["figures", silent, "--out", new],
        "was that file edited?": ["figures", edited, "--out", new],
        "there is no figure 'fig7'": ["figures", run, "--only", "fig5,fig7", "--out", new],
        "fig4 cannot be drawn": ["figures", run, "--only", "fig4", "--out", new],
        "not as 'bmp'": ["figures", run, "--format", "png,bmp", "--out", new],
        "--format names nothing": ["figures", run, "--format", "", "--out", new],
        "no such folder": ["figures", run, "--data", tmp_path / "nowhere", "--out", new],
        "holds no images": ["figures", run, "--data", empty, "--out", new],
        "something other than figures": ["figures", run, "--out", full],
        "is a file": ["figures", run, "--out", full / "thesis.html"],
        "is named 2 times": ["figures", run, run, "--out", new],
        "there is no folder": ["report", run, "--out", new / "report.html"],
        "no report of ours": ["report", run, "--out", full / "thesis.html"],
        "written as an .html": ["report", run, "--out", tmp_path / "report.pdf"],
        "not logged": ["report", silent],
    }
    for sentence, arguments in cases.items():
        code, out, err = command(*arguments)
        assert code == 2, (sentence, err)
        said = [line for line in err.splitlines() if line.startswith("flexpredict: ")]
        assert len(said) == 1, err
        assert sentence in said[0]
        assert out == ""
    assert not new.exists()
    assert [path.name for path in full.iterdir()] == ["thesis.html"]
    assert (full / "thesis.html").read_text() == "years of work"
    assert not (silent / "report.html").exists()


def test_figures__print_one_json_object(runs: list[Path], tmp_path: Path, command: Command) -> None:
    out = tmp_path / "figures"
    code, text, _ = command(
        "figures", *runs[:2], "--only", "fig5, masks", "--format", "svg", "--out", out, "--json"
    )
    assert code == 0
    assert json.loads(text) == {"out": str(out), "figures": ["fig5", "masks"], "skipped": {}}
    code, text, _ = command("figures", runs[0], "--only", "masks", "--format", "png", "--out", out)
    assert code == 0
    files = ["fig5.svg", "figures.json", "masks.png", "masks.svg"]
    assert sorted(path.name for path in out.iterdir()) == files
    kept = json.loads((out / "figures.json").read_text())["figures"]
    assert list(kept["fig5"]["runs"]) == ["still", NASTY]  # those it was drawn from
    assert list(kept["masks"]["runs"]) == ["still"]


def test_pictures__are_the_same_every_time(runs: list[Path]) -> None:
    opened = read_runs(runs[1:2])
    first, second = (of_runs.figure5(opened).figure for _ in range(2))
    assert to_svg(first) == to_svg(second)
    assert to_png(first) == to_png(second)


def test_figures__of_runs_whose_masks_fit_only_their_own_grids(
    images: Path, tmp_path: Path
) -> None:
    small: dict[str, Any] = SMALL | {"steps": 2}
    fine = small | {"patch_size": 4, "image_size": 48, "masking": "paper"}
    coarse = small | {"patch_size": 8, "image_size": 32}
    row = small | {"patch_size": 8, "image_size": (8, 64), "objective": "mae"}
    runs = []
    for name, settings in (("fine", fine), ("coarse", coarse), ("row", row)):
        fp.pretrain(images, tmp_path / name, **settings)
        runs.append(tmp_path / name)
    fp.figures(runs[:2], tmp_path / "both", only=["fig6"], device="cpu")
    fp.figures(runs[2:], tmp_path / "one", only=["fig5"], device="cpu")
    assert (tmp_path / "both" / "fig6.png").exists()
    assert (tmp_path / "one" / "fig5.png").exists()
