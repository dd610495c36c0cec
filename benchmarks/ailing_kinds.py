"""The kinds of runs that `doctor` is fitted and tried on (ailments.py): well, and made to fail."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flexpredict.data.sources import MemorySource

# The demo's recipe, short: about 10 s on a core.
SHORT: dict[str, Any] = {
    "recipe": "demo", "data": "scenes:2000", "steps": 400, "log_every": 5, "gauge_every": 20,
    "compile": False,
}  # fmt: skip
FULL: dict[str, Any] = {"gauge_every": 20, "log_every": 20, "data": "scenes:8000"}


class Slow(MemorySource):
    """A disk that takes its time."""

    def read(self, index: int) -> Any:
        time.sleep(0.005)
        return super().read(index)


def slow(source: MemorySource) -> MemorySource:
    return Slow(source.images)


def one_colour(source: MemorySource) -> MemorySource:
    means = source.images.mean(axis=(1, 2), keepdims=True).astype(np.uint8)
    return MemorySource(np.broadcast_to(means, source.images.shape).copy())


def static(source: MemorySource) -> MemorySource:
    """Pixels that say nothing about each other, as on a screen without a programme."""
    return MemorySource(np.random.default_rng(0).integers(0, 256, source.images.shape, np.uint8))


class Kind(NamedTuple):
    """What a run has to be called, and by which measures it is told."""

    verdict: str
    by: tuple[str, ...]
    settings: dict[str, Any]
    images: Callable[[MemorySource], MemorySource] | None = None
    until: int | None = None  # the last step of which anything is known


def healthy(**settings: Any) -> Kind:
    return Kind("healthy", (), settings)


KINDS = {
    "stop": healthy(),
    "sincos": healthy(positions="sincos"),
    "mae": healthy(objective="mae", masking="random", positions="sincos"),
    "lr-nan": Kind("exploding", ("broken",), {"lr": 1e3}),
    "lr-x100": Kind("exploding", ("growth",), {"lr": 0.1}),
    "lr-x1000": Kind("exploding", ("growth",), {"lr": 1.0}),
    "one-colour": Kind("collapsed", ("loss_kept",), {}, one_colour),
    "mae-one-colour": Kind(
        "collapsed", ("loss_kept",),
        {"objective": "mae", "masking": "random", "positions": "sincos"}, one_colour,
    ),
    "static": Kind("collapsed", ("loss_kept", "spread_kept"), {}, static),
    "static-begun": Kind("collapsing", ("rank_kept",), {"gauge_every": 5}, static, until=60),
    "ema-off": Kind("collapsing", ("apart",), {"ema": 0.0, "ema_final": 0.0}),
    "noise-x20": Kind("drowned", ("noise_over_signal",), {"noise_std": 5.0}),
    # Under noise on the context γ grows by 1.2 times and more, else hardly, however small A gets.
    "context": Kind(
        "escaping", ("noise_kept", "gamma_growth"),
        {"noise_on": "context", "noise_std": 3.0, "weight_decay": 5.0, "weight_decay_final": 5.0,
         "steps": 1200},
    ),
    "decay": Kind(
        "degenerate", ("noise_kept",),
        {"noise_std": 1.0, "weight_decay": 10.0, "weight_decay_final": 10.0},
    ),
    "untied": Kind(
        "degenerate", ("noise_kept",),
        {"tied": False, "noise_std": 2.0, "weight_decay": 1.0, "weight_decay_final": 1.0,
         "steps": 1200},
    ),
    "penalty": Kind("degenerate", ("noise_kept",), {"projection_l2": 0.1}),
    "slow-disk-begun": Kind("starved", ("data_wait",), {"hold": "none", "steps": 100}, slow, 40),
    "slow-disk": Kind("starved", ("data_wait",), {"hold": "none", "steps": 100}, slow),
    "lr-tiny": Kind(
        "stalled", ("movement",), {"lr": 1e-7, "lr_start": 1e-7, "lr_final": 1e-7}
    ),
    "lr-low": Kind(
        "stalled", ("movement",), {"lr": 1e-6, "lr_start": 1e-6, "lr_final": 1e-6}
    ),
    "ema-1": Kind("stalled", ("movement",), {"ema": 1.0}),
    "short": Kind("under-trained", ("lag",), {"steps": 60, "log_every": 1, "gauge_every": 5}),
}  # fmt: skip
RECIPES = {
    "demo": healthy(recipe="demo"),
    "demo-sincos": healthy(recipe="demo", positions="sincos"),
}
FIRST = {  # the small recipes as they were when these runs were made
    "batch_size": 512, "reference_batch_size": 512, "lr": 1e-3, "ema": 0.99,
    "context_scale": (0.85, 1.0), "target_layers": 1,
}  # fmt: skip
TINY = {  # on fewer images these would be too short to learn anything
    f"tiny-imagenet-{name}": healthy(data="tiny-imagenet:train", **FIRST, **settings)
    for name, settings in {
        "t8-sincos": {"recipe": "small/stop-vit-t8-64", "epochs": 20, "positions": "sincos"},
        **{
            f"t8-noise-{std:g}": {"recipe": "small/stop-vit-t8-64", "epochs": 20, "noise_std": std}
            for std in (0.1, 0.25, 0.5, 1.0)
        },
        "s8-sincos": {"recipe": "small/stop-vit-s8-64", "epochs": 60, "positions": "sincos"},
    }.items()
}
KEPT_RUNS = {  # of results/, on Tiny-ImageNet, by their folders
    **{
        f"results/{name}": healthy()
        for name in (
            "again-s8", "grid", "headline", "longer", "rate", "seeds", "seeds-s96", "seeds-t4"
        )
    },
    "results/s96-slow-average": Kind("under-trained", ("lag",), {}),
}  # fmt: skip
ALL = KINDS | RECIPES | TINY | KEPT_RUNS
