"""What training sees of an epoch is one thing: whoever loads it, and wherever it is taken up."""

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import Start, ended, wait_until
from short_runs import logged, losses

from flexpredict import build
from flexpredict.config import Settings, settings_from
from flexpredict.data import loader
from flexpredict.data.augment import augment_batch
from flexpredict.data.sources import open_source
from flexpredict.train.chunks import Chunks

SETTINGS = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "steps": 12,
    "augment": "crop-flip-gray-blur", "seed": 3, "chunk_size": 8,
}  # fmt: skip


def _seen(
    photos: Path, settings: Settings, *, workers: int = 0, world: int = 1, first: int = 0
) -> list[str]:
    """A digest for each step from `first` on: indices, pixels after augmentation, masks."""
    source = open_source(photos)
    sampler = build.build_sampler(settings, (8, 8))
    assert settings.steps is not None
    steps = range(first, settings.steps)
    chunks = Chunks(sampler, settings.seed, settings.chunk_size)
    streams = [
        loader.load(
            build.build_batches(settings, source, rank, world, beside=chunks),
            steps,
            workers=workers,
        )
        for rank in range(world)
    ]
    digests = []
    for parts in zip(*streams, strict=True):  # the ranks' parts of one step, put together
        images, indices, masks = [], [], []
        for batch in parts:
            images.append(augment_batch(batch.images, batch.draws, "crop-flip-gray-blur"))
            indices.append(batch.indices)
            (plans,) = batch.beside
            for plan in plans:
                both = torch.cat([plan.context, plan.targets.flatten(1)], dim=1)
                masks += [row.numpy().tobytes() for row in both]
        digest = hashlib.sha256(torch.cat(images).numpy().tobytes())
        digest.update(torch.cat(indices).numpy().tobytes())
        digest.update(b"".join(masks))
        digests.append(digest.hexdigest())
    return digests


@pytest.mark.parametrize("masking", ["even", "paper"])
def test_epoch__digest_does_not_depend_on_workers_ranks_or_start(
    masking: str, photos: Path
) -> None:
    least = {"min_context": 2} if masking == "paper" else {}
    settings = settings_from(SETTINGS | {"masking": masking} | least)
    whole = _seen(photos, settings)
    assert len(set(whole)) == 12  # two epochs of six steps, no two alike
    assert _seen(photos, settings, workers=1) == whole
    assert _seen(photos, settings, workers=4) == whole
    assert _seen(photos, settings, world=2) == whole
    assert _seen(photos, settings, world=2, workers=1) == whole
    for first in range(1, 12):
        assert _seen(photos, settings, first=first) == whole[first:]


def test_resume__after_a_kill_with_workers_ahead_sees_the_next_sample(
    photos: Path, tmp_path: Path, start: Start
) -> None:
    """Killed without warning while workers have prefetched: every later loss is the same."""
    command = [
        "-m", "flexpredict", "pretrain", str(photos), "--resume", "--device=cpu",
        "--set=workers=2", "--set=log_every=1", "--set=checkpoint_every=6", "--set=steps=120",
        *(f"--set={key}={value}" for key, value in SETTINGS.items() if key != "steps"),
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(*command, "--out", killed, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: logged(killed, 10), process)
    os.killpg(process.pid, signal.SIGKILL)  # the workers too
    process.wait()
    assert len(losses(killed)) < 120
    for run in (whole, killed):
        code, errors = ended(start(*command, "--out", run, stderr=subprocess.PIPE))
        assert code == 0, errors
    np.testing.assert_array_equal(losses(killed), losses(whole))


def test_pairs__that_share_a_seed_see_the_same(photos: Path) -> None:
    """Order, crops and masks: what the arms of a study differ by is theirs alone."""
    plain = SETTINGS | {"positions": "sincos", "noise_std": 0}
    noisy = SETTINGS | {"positions": "stop", "noise_std": 1.0, "noise_on": "both", "lr": 0.1}
    assert _seen(photos, settings_from(noisy)) == _seen(photos, settings_from(plain))
    other = _seen(photos, settings_from(plain | {"seed": 1}))
    assert not set(other) & set(_seen(photos, settings_from(plain)))
