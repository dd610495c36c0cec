"""Gauges in runs: they measure what they say, change nothing, and survive an interruption."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexpredict as fp
from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.data.loader import load
from flexpredict.data.sources import MemorySource
from flexpredict.health import gauges as health
from flexpredict.train.chunks import Chunks
from flexpredict.train.gauges import Coverage, Gauges, first_images, period
from flexpredict.train.step import step_of

SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 8, "log_every": 1, "gauge_every": 2, "checkpoint_every": 3, "workers": 0, "lr": 2e-3,
    "ema": 0.9,
}  # fmt: skip
TIMES = {"images_per_second", "seconds", "data_wait", "memory_gib"}
EVERY_LINE = {
    "step", "epoch", "loss", "lr", "weight_decay", "ema", "gradient_norm", "gradient_norm_encoder",
    "gradient_norm_predictor", "norm_A", "l1_A", "norm_b", "norm_mask_token",
    "l1_mask_token", "norm_gamma",
} | TIMES  # fmt: skip
GAUGED = {
    "rankme_target", "rankme_context", "spread_target", "spread_context", "cosine_target",
    "cosine_context", "encoder_distance", "noise_over_signal", "noise_over_position", "fixed_loss",
    "loss_by_block", "loss_by_row", "context_by_row", "targets_by_row",
}  # fmt: skip


def _lines(run: Path, *, timeless: bool = False) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in x.items() if not timeless or k not in TIMES} for x in lines]


def _gauges(
    pictures: np.ndarray, **more: Any
) -> tuple[Gauges, torch.nn.Module, torch.Tensor, Chunks]:
    settings = settings_from(SMALL | more)
    objective, source = build.build_objective(settings), MemorySource(pictures)
    chunks = Chunks(build.build_sampler(settings, (8, 8)), settings.seed, settings.chunk_size)
    step = step_of(settings, objective, torch.device("cpu"))
    images = first_images(settings, source)
    return Gauges(settings, source, chunks, objective, step), objective, images, chunks


def test_lines__carry_the_gauges(pictures: np.ndarray, tmp_path: Path) -> None:
    fp.pretrain(pictures, tmp_path / "run", **SMALL)
    lines = _lines(tmp_path / "run")
    assert [line["step"] for line in lines if "rankme_target" in line] == [1, 2, 4, 6, 8]
    assert set(lines[0]) == EVERY_LINE | GAUGED
    assert set(lines[2]) == EVERY_LINE
    last = lines[-1]
    assert len(last["loss_by_block"]) == 4
    assert len(last["loss_by_row"]) == len(last["context_by_row"]) == 8
    assert 0 <= last["data_wait"] <= 1
    assert last["memory_gib"] > 0.01
    parts = last["gradient_norm_encoder"], last["gradient_norm_predictor"]
    assert last["gradient_norm"] == pytest.approx(np.hypot(*parts), rel=1e-5)


@pytest.mark.parametrize("more", [{}, {"objective": "mae"}, {"masking": "paper"}], ids=str)
def test_gauges__change_nothing(more: dict[str, Any], pictures: np.ndarray, tmp_path: Path) -> None:
    fp.pretrain(pictures, tmp_path / "often", **SMALL | more | {"gauge_every": 1})
    fp.pretrain(pictures, tmp_path / "never", **SMALL | more | {"gauge_every": 1000})
    pairs = zip(*(_lines(tmp_path / run, timeless=True) for run in ("often", "never")), strict=True)
    for often, never in pairs:
        assert {name: often[name] for name in never} == never


def test_resume__gauges_and_coverage_go_on(pictures: np.ndarray, tmp_path: Path) -> None:
    """Lines are the same but for times, masks seen so far included."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    fp.pretrain(pictures, whole, **SMALL)
    fp.pretrain(pictures, broken, **SMALL)
    (broken / "checkpoints" / "latest").write_text("step-00000006")
    for path in (broken / "checkpoints" / "step-00000008").iterdir():
        path.unlink()
    (broken / "encoder.safetensors").unlink()
    fp.pretrain(pictures, broken, resume=True, **SMALL)
    assert _lines(broken, timeless=True) == _lines(whole, timeless=True)


def test_gauges__agree_with_the_objective(pictures: np.ndarray) -> None:
    """On the run's first images, in two chunks; the same again when asked again."""
    gauges, objective, images, chunks = _gauges(pictures)
    found = gauges()
    assert gauges() == found
    with torch.no_grad():
        loss = float(objective(images, chunks.views(chunks.plans(0, 0, 16), torch.device("cpu"))))
    assert found["fixed_loss"] == pytest.approx(loss, rel=1e-5)
    assert np.mean(found["loss_by_block"]) == pytest.approx(loss, rel=1e-5)
    features = objective.target_encoder.features(images)  # type: ignore[operator, union-attr]
    assert found["rankme_target"] == pytest.approx(health.rankme(health.gram(features)), rel=1e-4)
    assert found["spread_target"] == pytest.approx(float(health.spread(features)), rel=1e-4)
    assert objective.training


def test_gauges__rows_that_are_no_targets_are_null(pictures: np.ndarray, tmp_path: Path) -> None:
    """The paper's masks never ask for the last row (spec 1.4)."""
    fp.pretrain(pictures, tmp_path / "run", **SMALL | {"masking": "paper", "steps": 2})
    last = _lines(tmp_path / "run")[-1]
    assert last["loss_by_row"][-1] is None
    assert None not in last["loss_by_row"][:-1]
    assert last["targets_by_row"][-1] == last["context_by_row"][-1] == 0


def test_gauges__mae_has_one_encoder(pictures: np.ndarray) -> None:
    gauges, objective, images, chunks = _gauges(pictures, objective="mae")
    found = gauges()
    assert "rankme_target" in found
    assert not {"rankme_context", "encoder_distance"} & set(found)
    with torch.no_grad():
        loss = float(objective(images, chunks.views(chunks.plans(0, 0, 16), torch.device("cpu"))))
    assert found["fixed_loss"] == pytest.approx(loss, rel=1e-5)


def test_first_images__are_those_of_the_first_batch(pictures: np.ndarray) -> None:
    settings = settings_from(SMALL)
    batches = build.build_batches(settings, MemorySource(pictures))
    first = next(iter(load(batches, range(1))))
    assert torch.equal(first_images(settings, MemorySource(pictures)), first.images)


def test_coverage__counts_patches() -> None:
    settings = settings_from(SMALL)
    sampler = build.build_sampler(settings, (8, 8))
    chunks = Chunks(sampler, 0, 8)
    coverage = Coverage((8, 8))
    seen = {"context": np.zeros((8, 8)), "targets": np.zeros((8, 8))}
    for epoch in range(3):
        plans = chunks.plans(epoch, 0, 16)
        coverage.add(plans)
        for plan in plans:
            for name in seen:
                for place in getattr(plan, name).flatten().tolist():
                    seen[name][place // 8, place % 8] += 1
        coverage = Coverage((8, 8), json.loads(json.dumps(coverage.state())))  # as in a checkpoint
    found = coverage.gauges()
    for name, counts in seen.items():
        np.testing.assert_allclose(found[f"{name}_by_row"], counts.mean(1) / 48, atol=1e-6)


def test_period__by_the_length_of_the_run_unless_it_is_set() -> None:
    free, given = settings_from({"steps": 9}), settings_from({"steps": 9, "gauge_every": 7})
    assert [period(free, steps) for steps in (1, 90, 3000, 10**6)] == [5, 6, 200, 300]
    assert [period(given, steps) for steps in (1, 10**6)] == [7, 7]
