"""Estimates against what was measured or counted, and the command that measures."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import flexpredict as fp
from flexpredict import build
from flexpredict.bench import most_images
from flexpredict.config import settings_from
from flexpredict.data.cores import cores_taken, usable_cores
from flexpredict.engine import estimate
from flexpredict.engine.estimate import (
    Flops,
    Lengths,
    estimate_memory,
    estimate_seconds,
    flops_per_image,
    kept_bytes,
)
from flexpredict.engine.precision import autocast
from flexpredict.train import forecast
from flexpredict.train.chunks import Chunks

# GiB at the peak of a step: `benchmarks/step_anatomy.py memory`, even masks, StoP, compiled
# bfloat16, on one NVIDIA H200, torch 2.11, 2026-11-15 and 16; then with activation checkpointing.
PEAKS = {
    ("vit_base", 16): ({256: 13.37, 1024: 49.98}, {256: 4.9}),
    ("vit_large", 16): ({128: 19.5, 256: 32.92, 512: 60.31}, {128: 7.9}),
    ("vit_huge", 14): ({64: 23.183, 128: 34.67, 256: 58.21}, {64: 12.752}),
}
TINY: dict[str, Any] = {"model": "vit_nano", "patch_size": 4, "image_size": 32, "chunk_size": 8}
CPU = torch.device("cpu")
FAST = [*(f"--set={key}={value}" for key, value in TINY.items()), "--device=cpu"]


@pytest.mark.parametrize(("model", "patch_size"), PEAKS)
def test_memory__as_measured_on_a_gpu(model: str, patch_size: int) -> None:
    work = build.build_workload(settings_from({"model": model, "patch_size": patch_size}))
    for checkpointing, peaks in enumerate(PEAKS[model, patch_size]):
        for batch, gib in peaks.items():
            said = estimate_memory(work, batch, torch.bfloat16, checkpointing=bool(checkpointing))
            assert said / 2**30 == pytest.approx(gib, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("objective", ["ijepa", "mae"])
def test_memory__as_autograd_keeps(dtype: torch.dtype, checkpointing: bool, objective: str) -> None:
    """What the graph of a real step holds for 8 images more, not compiled."""
    values = {"objective": objective, "grad_checkpointing": checkpointing}
    settings = settings_from(TINY | values)
    work = build.build_workload(settings)
    found = (_kept(settings, 16, dtype) - _kept(settings, 8, dtype)) / 8
    said = kept_bytes(work, work.lengths[0], dtype, checkpointing)
    if checkpointing:  # all of one block, which comes and goes in the backward
        tokens = work.blocks * sum(work.lengths[0])
        said -= tokens * work.predictor.dim * (64 if dtype == torch.float32 else 36)
    assert said == pytest.approx(found, rel=0.12 if checkpointing else 0.03)


def _kept(settings: fp.Settings, images: int, dtype: torch.dtype) -> int:
    step = _forward(settings, images)
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(CPU, dtype),
    ):
        step()
    return sum(storage.nbytes() for storage in kept.values())


def _forward(settings: fp.Settings, images: int) -> Callable[[], Tensor]:
    """The loss of a batch of noise."""
    objective = build.build_objective(settings).train()
    sampler = build.build_sampler(settings, objective.encoder.grid)
    chunks = Chunks(sampler, settings.seed, settings.chunk_size)
    views = chunks.views(chunks.plans(0, 0, images), CPU)
    shape = (images, settings.in_channels, *build.image_size(settings))
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    return lambda: objective(pixels, views)


def test_memory__paper_masks_may_be_long_and_gradients_may_stay() -> None:
    """One chunk may be the longest; of many, some are short."""
    work = build.build_workload(settings_from({"model": "vit_base", "masking": "paper"}))
    few, many = (estimate_memory(work, 64 * chunks, torch.bfloat16) / chunks for chunks in (1, 64))
    assert few > 1.1 * many
    stays = estimate_memory(work, 64, torch.bfloat16, gradients_stay=True)
    assert stays == few + 4 * work.trained


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"positions": "sincos"},
        {"positions": "fixed"},
        {"positions": "diagonal"},
        {"positions": "low-rank"},
        {"positions": "coordinates"},
        {"positions": "conditioned"},
        {"positions": "appearance"},
        {"noise_on": "both", "tied": False},
        {"objective": "mae"},
        {"target_layers": 2},
        {"predictor_depth": 3, "predictor_dim": 48, "in_channels": 1},
    ],
    ids=str,
)
def test_flops__as_torch_counts_them(values: dict[str, Any]) -> None:
    settings = settings_from(TINY | values)
    step = _forward(settings, 8)
    # Written out, attention has no more products in its backward than the model needs.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step().backward()  # type: ignore[no-untyped-call]
    said = flops_per_image(build.build_workload(settings)).total
    assert said == pytest.approx(counter.get_total_flops() / 8, rel=0.01)


def test_flops__paper_masks_are_the_mean_of_chunks() -> None:
    """Of two chunks, the target encoder computes all patches, and each has lengths of its own."""
    settings = settings_from(TINY | {"masking": "paper"})
    work = build.build_workload(settings)
    assert len(set(work.lengths)) > 4
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        _forward(settings, 16)().backward()  # type: ignore[no-untyped-call]
    chunks = Chunks(build.build_sampler(settings, (8, 8)), settings.seed, settings.chunk_size)
    lengths = [Lengths(p.context.shape[1], p.targets.shape[2]) for p in chunks.plans(0, 0, 16)]
    assert len(set(lengths)) == 2
    said = flops_per_image(replace(work, lengths=lengths)).total
    assert said == pytest.approx(counter.get_total_flops() / 16, rel=0.01)


def test_seconds__checkpointing_computes_the_forward_twice() -> None:
    flops = Flops(1e9, 2e9, 4e9)
    assert estimate_seconds(flops, 100, 1e11, 0.5) == pytest.approx(14)
    assert estimate_seconds(flops, 100, 1e11, 0.5, checkpointing=True) == pytest.approx(18)


@pytest.mark.parametrize(
    ("batch", "room", "most"),
    [(100, 100, 100), (100, 99, 50), (100, 11, 6), (100, 799, 400), (7, 1, 1), (7, 0, 0),
     (1, 5, 4), (96, 10**9, 6_144), (100_000, 10**9, 100_000)],
)  # fmt: skip
def test_most_images__the_batch_halved_or_doubled(batch: int, room: int, most: int) -> None:
    assert most_images(batch, lambda size: size <= room) == most


KEYS = {
    "model", "device", "dtype", "compiled", "graph", "batch_size", "at_once", "context", "targets",
    "images_per_second", "step_ms", "gflop_per_image", "matmul_tflops", "share_of_matmul",
    "memory_gib", "estimated_memory_gib", "breakdown_ms", "masks_ms", "schedule_steps",
    "schedule_seconds", "fits",
}  # fmt: skip


def test_bench__json(command: Command) -> None:
    more = ["--set=batch_size=16", "--set=epochs=3", "--images=160", "--seconds=0.5"]
    code, out, _ = command("bench", *FAST, *more, "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found) == KEYS
    assert found["schedule_steps"] == 30
    assert found["batch_size"] / found["images_per_second"] == pytest.approx(
        found["step_ms"] / 1e3, rel=1e-2
    )
    assert found["schedule_seconds"] == pytest.approx(480 / found["images_per_second"], abs=0.1)
    assert 0 < found["share_of_matmul"] < 1
    assert found["memory_gib"] is None
    pieces = found["breakdown_ms"]
    assert set(pieces) == {"target_encoder", "forward", "backward", "update"}
    assert min(pieces.values()) > 0


@pytest.fixture
def usual_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does: how much is measured in some seconds depends on it."""
    monkeypatch.setattr(estimate, "matmul_rate", lambda *_: 1e11)


@pytest.mark.usefixtures("usual_speed")
def test_bench__fit_and_a_batch_too_large_to_wait_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for less than the batch: it is measured in parts, and fewer of them."""
    settings = settings_from(TINY | {"batch_size": 65536, "accumulate": 2})
    room = estimate_memory(build.build_workload(settings), 1024, torch.float32, gradients_stay=True)
    monkeypatch.setattr("flexpredict.bench.free", lambda _: room)
    more = ["--set=batch_size=65536", "--fit", "--seconds=0.5"]
    code, out, err = command("bench", *FAST, *more, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["fits"] == {"at_once": 1024, "batch_size": 65536, "accumulate": 64}
    assert found["batch_size"] == found["at_once"] < 1024
    assert found["schedule_seconds"] is None
    assert "to be in time" in err
    code, out, _ = command("bench", *FAST, "--set=batch_size=100", *more[1:], "--json")
    assert code == 0
    assert json.loads(out)["fits"] == {"at_once": 800, "batch_size": 100, "accumulate": 1}


@pytest.mark.usefixtures("usual_speed")
def test_bench__table(command: Command) -> None:
    more = ["--set=batch_size=16", "--set=accumulate=2", "--set=steps=1000", "--seconds=2"]
    code, out, _ = command("bench", *FAST, *more, "--fit")
    assert code == 0
    for words in ("images a second", "16 images", "share of the matmul peak", "1,000 steps"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_bench__one_sentence_and_exit_2(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexpredict.bench.free", lambda _: 1)
    cases = {
        "there is no recipe": ["--recipe", "best"],
        "did you mean batch_size": ["--set=batch_siz=1"],
        "there is no device": [*FAST, "--device=gpu"],
        "do not fill a batch of 256": [*FAST, "--images=10"],
        "does not divide into patches": [*FAST, "--set=patch_size=5"],
        "not even one image": [*FAST, "--fit", "--seconds=0.1"],
    }
    for sentence, arguments in cases.items():
        code, out, err = command("bench", *arguments)
        assert (code, out) == (2, ""), sentence
        assert sentence in err
        assert err.count("\n") == 1, err


@pytest.mark.usefixtures("usual_speed")
def test_forecast__said_before_a_run(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    values = TINY | {"steps": 2, "batch_size": 16, "workers": 0, "device": "cpu"}
    monkeypatch.setattr(forecast, "cores_taken", lambda: 0.0)
    fp.pretrain(pictures, tmp_path / "run", **values)
    said = capsys.readouterr().err
    assert "MiB of memory and 1 s (0.0622 GFLOP an image" in said
    assert "warning" not in said
    monkeypatch.setattr(forecast, "free_memory", lambda: 0)
    fp.pretrain(pictures, tmp_path / "other", **values)
    assert "raise accumulate or set grad_checkpointing=true" in capsys.readouterr().err


def test_forecast__other_work_on_the_cores_is_said(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    values = TINY | {"steps": 2, "batch_size": 16, "workers": 0, "device": "cpu"}
    monkeypatch.setattr(forecast, "cores_taken", lambda: 1.5)
    for threads, said in ((2, True), (1, False)):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        fp.pretrain(pictures, tmp_path / str(threads), **values)
        assert ("other work keeps 1.5 of" in capsys.readouterr().err) == said


def test_cores__what_others_keep_busy_is_seen() -> None:
    spin = [sys.executable, "-c", "print('spins', flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(usable_cores())]
    try:
        for one in others:
            assert one.stdout is not None
            one.stdout.readline()
        assert cores_taken(0.5) > 0.5 * usable_cores()
    finally:
        for one in others:
            one.kill()
            one.communicate()


def test_forecast__in_words() -> None:
    assert forecast.size_in_words(13.24 * 2**30) == "13.2 GiB"
    assert forecast.size_in_words(300 * 2**20) == "300 MiB"
    said = [forecast.in_words(seconds) for seconds in (0.1, 99, 720, 7800, 3600 * 76)]
    assert said == ["1 s", "99 s", "12 min", "2 h 10 min", "3 d 4 h"]
