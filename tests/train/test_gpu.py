"""On a GPU: the same run in bfloat16 and float16, and by every fast way. `pytest -m gpu`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexpredict as fp
from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.data.augment import BATCH_DRAWS, augment_batch
from flexpredict.data.loader import Batches, Order, hold, load
from flexpredict.data.sources import MemorySource
from flexpredict.engine import optim
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective import ijepa
from flexpredict.objective.views import View
from flexpredict.train.chunks import Chunks
from flexpredict.train.gauges import Gauges
from flexpredict.train.step import Step, step_of

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 30, "log_every": 1, "checkpoint_every": 10, "workers": 0, "lr": 2e-3, "ema": 0.9,
    "positions": "sincos", "compile": False, "graph": False, "hold": "none",
}  # fmt: skip


def _losses(run: Path) -> np.ndarray:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


@pytest.mark.parametrize(
    ("precision", "rtol"), [("float32", 1e-3), ("bfloat16", 3e-2), ("float16", 3e-2)]
)
def test_cuda__losses_follow_the_cpu(
    precision: str, rtol: float, pictures: np.ndarray, tmp_path: Path
) -> None:
    """Deterministic positions: masks and crops are the same bits on both devices."""
    fp.pretrain(pictures, tmp_path / "cpu", device="cpu", **SMALL)
    fp.pretrain(pictures, tmp_path / "gpu", device="cuda", **SMALL | {"precision": precision})
    np.testing.assert_allclose(_losses(tmp_path / "gpu"), _losses(tmp_path / "cpu"), rtol=rtol)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own, and it means to
@pytest.mark.parametrize(
    "fast",
    [
        {"graph": True}, {"graph": True, "accumulate": 1}, {"hold": "device"},
        {"compile": True, "graph": True}, {"compile": True, "graph": True, "accumulate": 1},
    ],
    ids=["graph", "graph at once", "held", "compiled", "compiled at once"],
)  # fmt: skip
def test_cuda__fast_ways_follow_the_plain_one(
    fast: dict[str, Any], pictures: np.ndarray, tmp_path: Path
) -> None:
    settings = SMALL | {"positions": "stop", "augment": "crop-flip-gray-blur", "accumulate": 2}
    settings["accumulate"] = fast.get("accumulate", 2)
    fp.pretrain(pictures, tmp_path / "plain", device="cuda", **settings)
    fp.pretrain(pictures, tmp_path / "fast", device="cuda", **settings | fast)
    losses, plain = _losses(tmp_path / "fast"), _losses(tmp_path / "plain")
    np.testing.assert_allclose(losses, plain, rtol=3e-2)
    if set(fast) <= {"graph", "accumulate"}:  # the same kernels on the same noise
        np.testing.assert_allclose(losses[:3], plain[:3], rtol=1e-4)


@pytest.mark.parametrize("clip_grad", [0.0, 1e-3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_cuda__graphs_of_several_shapes_follow_the_plain_step(
    clip_grad: float, checkpointing: bool, pictures: np.ndarray
) -> None:
    """More lengths of masks than are captured, again and again in another order."""
    settings = settings_from(SMALL | {"grad_checkpointing": checkpointing})
    device, steps = torch.device("cuda"), []
    for graph in (False, True):
        objective = build.build_objective(settings).to(device).train()
        groups = optim.parameter_groups([objective.encoder, objective.predictor])
        optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
        steps.append(
            Step(
                objective, optimizer, device=device, dtype=torch.bfloat16, graph=graph,
                clip_grad=clip_grad,
            )
        )  # fmt: skip
    images = torch.from_numpy(pictures[:16]).permute(0, 3, 1, 2).contiguous().cuda()
    masks = fp.EvenMasks(steps[0].objective.encoder.grid).sample(
        16, torch.Generator().manual_seed(0)
    )
    length = masks.context.shape[1]
    for cut in (0, 1, 2, 0, 3, 4, 5, 1, 5, 4, 0, 2):
        some = Masks(masks.context[:, : length - cut], masks.targets).to(device)
        losses = [step(images, [[View(some, Draws())]], 0.9, measure=True) for step in steps]
        torch.testing.assert_close(losses[1][0], losses[0][0], rtol=2e-3, atol=0)
        for name, norm in losses[0][1].items():
            torch.testing.assert_close(losses[1][1][name], norm, rtol=3e-2, atol=0)
    with pytest.raises(ValueError, match="captured for 1 micro-batches a step, not 2"):
        steps[1](images, [[View(some[:8], Draws())], [View(some[8:], Draws())]], 0.9)


@pytest.mark.parametrize("positions", ["annealed", "low-rank", "coordinates", "conditioned"])
def test_cuda__a_graph_follows_noise_beyond_the_paper(
    positions: str, pictures: np.ndarray, tmp_path: Path
) -> None:
    """Annealed: what is replayed reads the share of the run that is done, step by step."""
    settings = SMALL | {"positions": positions, "noise_std": 2.0, "precision": "float32"}
    fp.pretrain(pictures, tmp_path / "plain", device="cuda", **settings)
    fp.pretrain(pictures, tmp_path / "graph", device="cuda", **settings | {"graph": True})
    losses, plain = _losses(tmp_path / "graph"), _losses(tmp_path / "plain")
    np.testing.assert_allclose(losses, plain, rtol=1e-2)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_cuda__gauges_by_graph_follow_the_plain_ones(pictures: np.ndarray, tmp_path: Path) -> None:
    """Computed at once, captured, replayed: of the same weights they are the same numbers."""
    settings = SMALL | {"positions": "stop", "gauge_every": 5, "lr": 1e-12, "lr_start": 1e-12}
    for name, ways in {"plain": {}, "fast": {"compile": True, "graph": True}}.items():
        fp.pretrain(pictures, tmp_path / name, device="cuda", **settings | ways)
    gauged = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("plain", "fast")
    ]
    for plain, fast in zip(*gauged, strict=True):
        assert set(plain) == set(fast)
        for name in ("rankme_target", "spread_context", "noise_over_signal", "fixed_loss"):
            if name in plain:
                np.testing.assert_allclose(fast[name], plain[name], rtol=1e-3)


def test_cuda__gauges_to_come_are_of_the_weights_they_were_begun_with(pictures: np.ndarray) -> None:
    settings, device = settings_from(SMALL | {"graph": True}), torch.device("cuda")
    objective = build.build_objective(settings)
    chunks = Chunks(build.build_sampler(settings, objective.encoder.grid), 0, 8)
    compute = step_of(settings, objective, device)
    gauges = Gauges(settings, MemorySource(pictures), chunks, objective, compute)
    images = torch.from_numpy(pictures[:16]).permute(0, 3, 1, 2).contiguous().cuda()

    def train(steps: int) -> None:
        for _ in range(steps):
            compute(images, [chunks.views(plans, device) for plans in chunks(0, 0, 16)], 0.9)

    train(5)
    for _ in range(2):  # at once, and captured
        before = gauges()
    pending = gauges.begin()
    train(5)
    later = gauges.begin()
    train(5)
    assert pending.result() == before
    assert later.result()["fixed_loss"] != before["fixed_loss"]
    assert gauges()["fixed_loss"] != later.result()["fixed_loss"]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda__steps_do_not_wait_for_the_device(pictures: np.ndarray) -> None:
    """Images, masks and noise to loss, gradient, optimiser and moving average, without a pause."""
    settings = settings_from(SMALL)
    objective = build.build_objective(settings).to("cuda")
    optimizer = torch.optim.AdamW(
        optim.parameter_groups([objective.encoder, objective.predictor]), fused=True
    )
    device = torch.device("cuda")
    compute = Step(objective, optimizer, device=device, dtype=torch.bfloat16)
    chunks = Chunks(build.build_sampler(settings, objective.encoder.grid), 0, 8)
    images = torch.from_numpy(pictures[:16]).permute(0, 3, 1, 2).cuda()
    draws = torch.rand(16, BATCH_DRAWS).pin_memory()
    views = [chunks.views(plans, device) for plans in chunks(0, 0, 16)]
    compute(augment_batch(images, draws, "crop-flip-gray-blur"), views, 0.99, measure=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        compute(augment_batch(images, draws, "crop-flip-gray-blur"), views, 0.99, measure=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_held__crops_are_those_of_the_cpu(pictures: np.ndarray) -> None:
    """To one grey level: products in float32 round otherwise where a half is near."""
    order = Order(len(pictures), 32, seed=0)
    for images in (pictures, pictures[:, :20, :31]):
        streams = []
        for device in ("cpu", "cuda"):
            batches = Batches(MemorySource(images), order, image_size=(24, 16))
            held = hold(batches, "device", torch.device(device))
            streams.append([batch.images.cpu() for batch in load(held, range(3))])
        for one, two in zip(*streams, strict=True):
            assert (one.int() - two.int()).abs().max() <= 1


@pytest.mark.parametrize(("masking", "graph"), [("even", False), ("paper", False), ("even", True)])
def test_cuda__resume_goes_on(
    masking: str, graph: bool, pictures: np.ndarray, tmp_path: Path
) -> None:
    """The loss after the checkpoint is the one that the uninterrupted run had."""
    settings = SMALL | {"positions": "stop", "masking": masking, "graph": graph}
    settings |= {"augment": "crop-flip-gray-blur"}
    fp.pretrain(pictures, tmp_path / "whole", device="cuda", **settings)

    class Dying(MemorySource):
        reads = 0

        def read(self, index: int) -> np.ndarray:
            self.reads += 1
            if self.reads > 15 * 16:
                raise KeyboardInterrupt
            return super().read(index)

    with pytest.raises(KeyboardInterrupt):
        fp.pretrain(Dying(pictures), tmp_path / "parts", device="cuda", **settings)
    fp.pretrain(pictures, tmp_path / "parts", device="cuda", resume=True, **settings)
    np.testing.assert_allclose(_losses(tmp_path / "parts"), _losses(tmp_path / "whole"), rtol=1e-2)


@pytest.mark.parametrize("sampler", [fp.PaperMasks((14, 14)), fp.EvenMasks((14, 14))])
def test_cuda__masks_are_drawn_there(sampler: Any) -> None:
    masks = sampler.sample(256, torch.Generator("cuda").manual_seed(0))
    assert masks.context.is_cuda
    for context, targets in zip(masks.context.tolist(), masks.targets.tolist(), strict=True):
        assert not set(context) & {place for block in targets for place in block}


def test_cuda__features_equal_the_cpus(pictures: np.ndarray, tmp_path: Path) -> None:
    fp.pretrain(pictures, tmp_path / "run", device="cpu", **SMALL)
    cpu, gpu = (fp.features(tmp_path / "run", pictures, device=d).features for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu, cpu, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("layers", [1, 3])
def test_cuda__a_branch_of_the_graph_changes_no_bit(
    layers: int, pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SMALL | {"positions": "stop", "graph": True, "target_layers": layers}
    fp.pretrain(pictures, tmp_path / "beside", device="cuda", **settings)
    monkeypatch.setattr(ijepa, "beside", lambda _: nullcontext(lambda: None))
    fp.pretrain(pictures, tmp_path / "after", device="cuda", **settings)
    np.testing.assert_array_equal(_losses(tmp_path / "beside"), _losses(tmp_path / "after"))
