"""Runs that are short but real: written, interrupted, resumed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from short_runs import SMALL, assert_same, logged, losses, weights

import flexpredict as fp
from flexpredict.build import build_objective
from flexpredict.config import read_settings
from flexpredict.data.sources import MemorySource
from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import encoder_digest, load_encoder
from flexpredict.model.covariances import Covariance
from flexpredict.train import holding
from flexpredict.train.monitor import Rejections

GOLDEN = Path(__file__).parent / "golden_losses.json"


@pytest.mark.parametrize(
    "name",
    ["ijepa", "ijepa-stop", "mae"],
)
def test_golden_losses(name: str, pictures: np.ndarray, tmp_path: Path) -> None:
    """The first 20 losses of a fixed seed. A refactor keeps them; a numeric change says why not."""
    variants: dict[str, dict[str, Any]] = {
        "ijepa": {"positions": "sincos"},
        "ijepa-stop": {"positions": "stop", "masking": "paper"},
        "mae": {"objective": "mae", "masking": "random", "positions": "sincos"},
    }
    fp.pretrain(
        pictures,
        tmp_path / "run",
        **SMALL | {"steps": 20, "precision": "float32"},
        **variants[name],
    )
    stored = json.loads(GOLDEN.read_text())
    np.testing.assert_allclose(losses(tmp_path / "run"), stored[name], rtol=1e-4)


def test_run_folder__is_complete(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = fp.pretrain(pictures, run, **SMALL)
    assert result.steps == 8
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "encoder.safetensors",
        "encoder.json",
    }
    assert (run / "checkpoints" / "latest").read_text() == "step-00000008"
    assert len(checkpoint.complete(run)) == 2  # keep_checkpoints
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["step"] == 8
    assert {"loss", "lr", "weight_decay", "ema", "norm_A", "norm_mask_token"} <= set(line)
    encoder = fp.load(run)
    assert encoder.features(torch.from_numpy(pictures[:3]).permute(0, 3, 1, 2)).shape == (3, 64)
    target, context = fp.load(run), fp.load(run, encoder="context")
    assert not torch.equal(target.patch_embed.proj.weight, context.patch_embed.proj.weight)
    stored = weights(run)
    assert torch.equal(target.norm.weight, stored["target_encoder.norm.weight"])
    assert torch.equal(context.norm.weight, stored["encoder.norm.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"masking": "paper", "augment": "crop-flip-gray-blur"},
        *({"positions": name} for name in ("low-rank", "coordinates", "conditioned", "annealed")),
    ],
    ids=str,
)
def test_resume__continues_bit_for_bit(
    settings: dict[str, Any], pictures: np.ndarray, tmp_path: Path
) -> None:
    """A run that dies between checkpoints goes on from the last one and ends the same."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    fp.pretrain(pictures, whole, **SMALL | settings)

    class Dying(MemorySource):
        reads = 0

        def read(self, index: int) -> np.ndarray:
            self.reads += 1
            if self.reads > 8 + (1 + 5) * 16:  # a first look at 8, gauges at the first batch
                raise KeyboardInterrupt
            return super().read(index)

    with pytest.raises(KeyboardInterrupt):
        fp.pretrain(Dying(pictures), broken, **SMALL | settings)
    assert len(losses(broken)) == 5  # two steps more than the checkpoint of step 3
    fp.pretrain(pictures, broken, resume=True, **SMALL | settings)
    assert_same(whole, broken)


def test_images__that_are_gone_for_a_while_cost_no_step(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    """As on a disk that is reached by a network: what was trained is saved first."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    more = SMALL | {"checkpoint_every": 1000}
    fp.pretrain(pictures, whole, **more)

    class Gone(MemorySource):
        reads = 0

        def read(self, index: int) -> np.ndarray:
            self.reads += 1
            if self.reads > 8 + (1 + 5) * 16:  # a first look at 8, gauges at the first batch
                raise OSError("the disk is gone")
            return super().read(index)

    with pytest.raises(RuntimeError, match=r"the disk is gone; step 5 is saved, and --resume"):
        fp.pretrain(Gone(pictures), run, **more)
    assert not (run / "rejected.jsonl").exists()
    fp.pretrain(pictures, run, resume=True, **more)
    assert_same(whole, run)


def test_folder__that_is_moved_while_it_is_written_to(pictures: np.ndarray, tmp_path: Path) -> None:
    """It is said at the next checkpoint, and nothing is left under the old name."""
    run = tmp_path / "run"

    class Moving(MemorySource):
        def read(self, index: int) -> np.ndarray:
            if logged(run, 4):
                run.rename(tmp_path / "moved")
            return super().read(index)

    with pytest.raises(OSError, match=r"run was moved or removed while it trained"):
        fp.pretrain(Moving(pictures), run, **SMALL)
    assert not run.exists()
    fp.pretrain(pictures, tmp_path / "moved", resume=True, **SMALL)


def test_resume__takes_the_settings_of_the_run(
    pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who forgets one gets no other run, and another length is said aloud."""
    run = tmp_path / "run"
    fp.pretrain(pictures, run, recipe="demo", **SMALL)
    before = (run / "config.yaml").read_text()
    assert fp.pretrain(pictures, run, resume=True).loss is None
    assert fp.pretrain(pictures, run, recipe="demo", resume=True, **SMALL).loss is None
    assert (run / "config.yaml").read_text() == before
    with pytest.raises(ValueError, match=r"was started with model=vit_nano, not vit_tiny"):
        fp.pretrain(pictures, run, recipe="small/stop-vit-t8-64", resume=True)
    fp.pretrain(pictures, run, resume=True, steps=10)
    assert len(losses(run)) == 10
    assert "was to have steps=8, and now steps=10" in capsys.readouterr().err
    fp.pretrain(pictures, run, resume=True, epochs=2)
    now = read_settings(run / "config.yaml")
    assert (now.epochs, now.steps, now.batch_size, now.log_every) == (2, None, 16, 1)


def _halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    """One bit of some weight."""
    place = len(data) * 3 // 4
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        (checkpoint.MODEL, _halved),
        (checkpoint.MODEL, _flipped),
        (checkpoint.OPTIMIZER, _flipped),
    ],
)
def test_resume__unreadable_newest_checkpoint_falls_back(
    name: str,
    harm: Callable[[bytes], bytes],
    pictures: np.ndarray,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    fp.pretrain(pictures, whole, **SMALL)
    fp.pretrain(pictures, run, **SMALL)
    (run / "encoder.safetensors").unlink()
    newest = checkpoint.newest(run)
    assert newest is not None
    (newest / name).write_bytes(harm((newest / name).read_bytes()))
    fp.pretrain(pictures, run, resume=True, **SMALL)
    assert_same(whole, run)
    assert f"an older one is used; {newest.name}" in capsys.readouterr().err


def test_checkpoint__one_that_was_passed_over_pushes_no_sound_one_out(tmp_path: Path) -> None:
    weights = {"w": torch.ones(3)}
    for step in (100, 200):
        checkpoint.write(tmp_path, step, weights, {}, {}, keep=2)
    sound = checkpoint.write(tmp_path, 150, weights, {}, {}, keep=1)  # 200 could not be read
    assert checkpoint.complete(tmp_path) == [sound]
    assert checkpoint.newest(tmp_path) == sound
    assert (tmp_path / "checkpoints/passed-over-step-00000200" / checkpoint.MODEL).exists()


def test_resume__a_run_that_never_saved_begins_again_and_says_so(
    pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_text()
    fp.pretrain(pictures, run, resume=True, **SMALL)
    assert "had come to step 8, but no checkpoint was saved: it begins again" in (
        capsys.readouterr().err
    )
    assert (run / "metrics.earlier.jsonl").read_text() == before
    assert len(losses(run)) == 8


def test_resume__settings_that_were_edited_are_refused(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("noise_std: 0.25", "noise_std: 0.5"))
    with pytest.raises(ValueError, match=r"was trained with noise_std=0.25, not 0.5: put its conf"):
        fp.pretrain(pictures, run, resume=True, steps=10)


def test_folder__that_is_taken_is_the_first_thing_said(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    fp.pretrain(pictures, tmp_path / "run", **SMALL)
    with pytest.raises(ValueError, match="already holds a run"):
        fp.pretrain(pictures, tmp_path / "run")  # whose batch of 256 these do not fill


def test_resume__checkpoints_that_are_gone_are_missed(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    before = losses(run)
    (run / "encoder.safetensors").unlink()
    for path in checkpoint.complete(run):
        shutil.rmtree(path)
    with pytest.raises(ValueError, match="was at step-00000008, but its checkpoints are gone"):
        fp.pretrain(pictures, run, resume=True, **SMALL)
    assert losses(run) == before


def test_resume__evaluations_of_earlier_weights_are_set_aside(
    pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    folder = run / "evaluations"
    folder.mkdir()
    digest = encoder_digest(load_encoder(run))
    for name, one in {
        "own": {"encoder": "target", "checkpoint": digest},
        "floor": {"encoder": "untrained", "checkpoint": "0123456789"},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(one))
    fp.pretrain(pictures, run, resume=True, **SMALL)
    assert {path.name for path in folder.iterdir()} == {"own.json", "floor.json"}
    fp.pretrain(pictures, run, resume=True, **SMALL | {"steps": 10})
    assert {path.name for path in folder.iterdir()} == {"floor.json", "earlier"}
    assert (folder / f"earlier/own-{digest[:8]}.json").exists()
    assert f"1 evaluations were of earlier weights: {folder / 'earlier'}" in capsys.readouterr().err


def test_resume__images_that_have_moved_are_noted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(photos, moved)
    fp.pretrain(photos, tmp_path / "run", **SMALL)
    fp.pretrain(f"{photos}/", tmp_path / "run", resume=True, **SMALL | {"steps": 9})
    assert "was started on" not in capsys.readouterr().err  # a slash more is no other place
    fp.pretrain(moved, tmp_path / "run", resume=True, **SMALL | {"steps": 10})
    assert f"was started on {photos}, and goes on with {moved}" in capsys.readouterr().err


def test_resume__finished_run_has_nothing_to_do(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, resume=True, **SMALL)  # starts where there is none
    before = losses(run)
    assert fp.pretrain(pictures, run, resume=True, **SMALL).loss is None
    assert losses(run) == before


def test_resume__longer_schedule_goes_on(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    result = fp.pretrain(pictures, run, resume=True, **SMALL | {"steps": 12})
    assert len(losses(run)) == 12
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)  # time goes on as well
    assert result.seconds >= seconds[-1]


def test_resume__other_settings_or_images_are_refused(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    config = (run / "config.yaml").read_text()
    with pytest.raises(ValueError, match="already holds a run"):
        fp.pretrain(pictures, run, **SMALL)
    with pytest.raises(ValueError, match=r"was started with noise_std=0.25, not 0.5"):
        fp.pretrain(pictures, run, resume=True, **SMALL | {"noise_std": 0.5})
    with pytest.raises(ValueError, match="was started on 96 images, not 95"):
        fp.pretrain(pictures[:95], run, resume=True, **SMALL | {"steps": 9})
    assert (run / "config.yaml").read_text() == config


def test_resume__with_less_memory(
    pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the forecast advises may be set when a run goes on."""
    run, plain = tmp_path / "run", tmp_path / "plain"
    fp.pretrain(pictures, plain, **SMALL)
    shutil.copytree(plain, run)
    fp.pretrain(pictures, plain, resume=True, steps=12)
    less = {"steps": 12, "accumulate": 2, "grad_checkpointing": True}
    fp.pretrain(pictures, run, resume=True, **less)
    assert "was started with accumulate=1, not 2: sums are rounded otherwise" in (
        capsys.readouterr().err
    )
    np.testing.assert_allclose(losses(run), losses(plain), rtol=1e-4)


def test_asked__and_not_used_is_said(
    pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"masking": "paper", "min_context": 2, "compile": True, "graph": True}
    fp.pretrain(pictures, tmp_path / "run", **SMALL | asked)
    said = capsys.readouterr().err
    assert "compile=true is not used: masking=paper has ever new lengths" in said
    assert "graph=true is not used: it needs one process on a GPU" in said


def test_resume__shorter_schedule_is_refused(pictures: np.ndarray, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fp.pretrain(pictures, run, **SMALL)
    with pytest.raises(ValueError, match="is at step 8, beyond the 5 that were asked for"):
        fp.pretrain(pictures, run, resume=True, **SMALL | {"steps": 5})
    assert read_settings(run / "config.yaml").steps == 8


def test_checkpoint__broken_weights_are_not_saved(pictures: np.ndarray, tmp_path: Path) -> None:
    """Nothing is logged in time, so only the save can notice."""
    run = tmp_path / "run"
    broken = {"lr": 1e30, "lr_start": 1e30, "log_every": 1000}
    with pytest.raises(FloatingPointError, match="not finite after step 3, which was not saved"):
        fp.pretrain(pictures, run, **SMALL | broken)
    assert checkpoint.newest(run) is None


def test_accumulation__same_losses(pictures: np.ndarray, tmp_path: Path) -> None:
    """Micro-batches of 4 cut the chunks of 8 in two: masks and noise stay the same."""
    fp.pretrain(pictures, tmp_path / "one", **SMALL)
    fp.pretrain(pictures, tmp_path / "four", **SMALL | {"accumulate": 4})
    np.testing.assert_allclose(losses(tmp_path / "one"), losses(tmp_path / "four"), rtol=1e-4)


def test_clipping__bounds_the_gradient(pictures: np.ndarray, tmp_path: Path) -> None:
    fp.pretrain(pictures, tmp_path / "free", **SMALL)
    fp.pretrain(pictures, tmp_path / "clipped", **SMALL | {"clip_grad": 1e-3})
    free, clipped = losses(tmp_path / "free"), losses(tmp_path / "clipped")
    assert free[0] == clipped[0]
    assert free[-1] != clipped[-1]


def test_loss__not_finite_stops_the_run(pictures: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="the loss is nan at step"):
        fp.pretrain(pictures, tmp_path / "run", **SMALL | {"lr": 1e30, "lr_start": 1e30})


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": (32, 24)},
        {"in_channels": 1},
        {"objective": "mae", "masking": "random", "positions": "stop"},
        {"positions": "learned"},
        {"positions": "fixed"},
        {"noise_on": "both", "projection_norm": True},
        {"tied": False},
        {"form": "released", "masking": "paper"},
        {"low_resolution": "max", "target_layers": 3},
        {"projection_dropout": 0.1, "projection_l1": 1e-4},
        {"grad_checkpointing": True, "accumulate": 2},
        {"precision": "bfloat16", "depth_scaled_init": True},
    ],
    ids=str,
)
def test_variants__train_and_load(
    settings: dict[str, Any], pictures: np.ndarray, tmp_path: Path
) -> None:
    images = pictures[..., : settings.get("in_channels", 3)]
    fp.pretrain(images, tmp_path / "run", **SMALL | {"steps": 3} | settings)
    assert np.isfinite(losses(tmp_path / "run")).all()
    features = fp.features(tmp_path / "run", images[:4]).features
    assert features.shape == (4, 64)
    assert np.isfinite(features).all()


def test_covariances__train_from_common_weights(pictures: np.ndarray, tmp_path: Path) -> None:
    """Each has losses of its own; what it learns is moved by the optimiser and saved."""
    found, learned = {}, {}
    for name in ("stop", *get_args(Covariance)[1:]):
        run = tmp_path / name
        fp.pretrain(pictures, run, **SMALL | {"steps": 4, "positions": name, "noise_std": 1.0})
        found[name] = losses(run)
        before = build_objective(read_settings(run / "config.yaml")).state_dict()
        after = weights(run)
        assert set(before) == set(after)
        learned |= {
            f"{name}: {key.partition('noise.')[2]}": not torch.equal(before[key], after[key])
            for key in after
            if "positions.noise." in key
        }
    assert np.isfinite(list(found.values())).all()
    alike = ("stop", "scaled", "conditioned", "annealed")  # they start as StoP
    assert len({found[name][0] for name in alike}) == 1
    assert len({found[name][-1] for name in found}) == len(found)
    assert len({values[0] for values in found.values()}) == len(found) - len(alike) + 1
    assert learned == {
        "low-rank: directions": False,
        "coordinates: spread": True,
        "scaled: scale": True,
        "conditioned: gate": True,
    }


def test_annealed__noise_follows_the_step(pictures: np.ndarray, tmp_path: Path) -> None:
    """Annealed to where it starts, it is StoP to the bit; to zero, it is StoP at the first step."""
    runs: dict[str, dict[str, Any]] = {
        "stop": {"positions": "stop"},
        "nowhere": {"positions": "annealed", "noise_std_final": 0.25},
        "to-zero": {"positions": "annealed"},
    }
    for name, settings in runs.items():
        fp.pretrain(pictures, tmp_path / name, **SMALL | settings)
    assert_same(tmp_path / "stop", tmp_path / "nowhere")
    stop, zero = losses(tmp_path / "stop"), losses(tmp_path / "to-zero")
    assert zero[0] == stop[0]
    assert all(a != b for a, b in zip(zero[1:], stop[1:], strict=True))


def test_data__what_is_given_wins_over_the_recipe(pictures: np.ndarray, tmp_path: Path) -> None:
    """The recipe names the embedded scenes; an array was given."""
    fp.pretrain(pictures, tmp_path / "run", recipe="demo", steps=1, device="cpu")
    assert read_settings(tmp_path / "run" / "config.yaml").data is None


def test_noise__larger_noise_std_gives_a_smaller_norm_of_A(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    """Figure 4 at toy size."""
    norms = []
    for noise_std in (0.0, 0.5, 2.0):
        run = tmp_path / str(noise_std)
        fp.pretrain(
            pictures, run, **SMALL | {"noise_std": noise_std, "steps": 150, "log_every": 150}
        )
        last = (run / "metrics.jsonl").read_text().splitlines()[-1]
        norms.append(json.loads(last)["norm_A"])
    assert norms[0] > 1.05 * norms[1] > 1.1 * norms[2]


def test_channels__have_the_statistics_of_the_images(pictures: np.ndarray, tmp_path: Path) -> None:
    """Unless they are three, or somebody says; a run that goes on keeps those it began with."""
    five = np.concatenate([pictures, pictures[..., :2] // 2], axis=-1)
    run = tmp_path / "run"
    fp.pretrain(five, run, **SMALL | {"in_channels": 5, "steps": 3})
    stored = read_settings(run / "config.yaml")
    scaled = five.astype(float) / 255
    np.testing.assert_allclose(stored.mean, scaled.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(stored.std, scaled.std((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(fp.load(run).std.flatten().numpy(), stored.std, rtol=1e-6)
    fp.pretrain(five[::-1] // 3, run, resume=True, **SMALL | {"in_channels": 5, "steps": 5})
    assert read_settings(run / "config.yaml").mean == stored.mean
    said = {"mean": (0.1,) * 5, "std": (1.0,) * 5}
    fp.pretrain(five, tmp_path / "said", **SMALL | said | {"in_channels": 5, "steps": 1})
    assert read_settings(tmp_path / "said" / "config.yaml").mean == said["mean"]
    half = {"std": (0.5,) * 5}  # the other half is measured all the same
    fp.pretrain(five, tmp_path / "half", **SMALL | half | {"in_channels": 5, "steps": 1})
    settings = read_settings(tmp_path / "half" / "config.yaml")
    assert (settings.mean, settings.std) == (stored.mean, half["std"])
    fp.pretrain(pictures, tmp_path / "rgb", **SMALL | {"steps": 1})
    assert read_settings(tmp_path / "rgb" / "config.yaml").mean is None


def test_scenes__are_rendered_for_the_longer_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXPREDICT_CACHE", str(tmp_path / "cache"))
    wide = SMALL | {"image_size": (16, 32), "steps": 1, "batch_size": 4}
    fp.pretrain("scenes:16", tmp_path / "run", **wide)
    fp.features(tmp_path / "run", "scenes:8")
    rendered = [path.name for path in (tmp_path / "cache").rglob("scenes-*")]
    assert len(set(rendered)) == 2
    assert all("-32px-" in name for name in rendered)


def test_hold__is_noted_and_kept_by_a_run_that_goes_on(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Images are decoded once where they fit; a run without holding stays without."""
    for hold, noted in (("auto", "ram"), ("none", "none")):
        run = tmp_path / hold
        fp.pretrain(photos, run, **SMALL | {"steps": 20, "hold": hold})
        newest = checkpoint.newest(run)
        assert newest is not None
        assert json.loads((newest / "state.json").read_text())["held"] == noted
    fp.pretrain(photos, tmp_path / "none", resume=True, **SMALL | {"steps": 24})
    newest = checkpoint.newest(tmp_path / "none")
    assert newest is not None
    assert json.loads((newest / "state.json").read_text())["held"] == "none"
    assert "so far" not in capsys.readouterr().err
    monkeypatch.setattr(holding, "place_for", lambda *_, **__: "none")  # memory is short now
    fp.pretrain(photos, tmp_path / "auto", resume=True, **SMALL | {"steps": 24})
    assert "images were held in memory so far and are decoded when" in capsys.readouterr().err


def test_hold__a_guess_that_is_too_small_is_taken_back(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(holding, "room_for", lambda *_, **__: 1000.0)
    fp.pretrain(photos, tmp_path / "run", **SMALL | {"steps": 20})
    assert "do not fit into memory decoded" in capsys.readouterr().err
    assert len(losses(tmp_path / "run")) == 20


def test_rejections__many_are_noted_quickly_and_once(tmp_path: Path) -> None:
    """Two sessions at once, as two processes would be; a line that was cut off does no harm."""
    (tmp_path / "rejected.jsonl").write_text('{"index": 7, "name": "seven", "reason": "x"}\n{"ind')
    one, two = Rejections(tmp_path), Rejections(tmp_path)
    for index in range(3000):
        one.add(index, "same name", "broken")
        two.add(index, "same name", "broken")
    lines = (tmp_path / "rejected.jsonl").read_text().splitlines()
    known = [json.loads(line)["index"] for line in lines if line.endswith("}")]
    assert sorted(known) == list(range(3000))
    assert len(one) == len(two) == 3000
