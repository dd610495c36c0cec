"""What people call from Python; the command line calls the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexpredict.build import image_size
from flexpredict.config import settings_from
from flexpredict.data.sources import Source, open_source
from flexpredict.engine.distributed import pick_device, processes
from flexpredict.engine.encoders import Which, load_encoder
from flexpredict.evaluate.features import extract
from flexpredict.model.vit import Encoder
from flexpredict.train.loop import Result, train
from flexpredict.train.monitor import Tally

if TYPE_CHECKING:
    from flexpredict.demonstration import Demo

Data = str | Path | Source | NDArray[np.uint8]


class Features(NamedTuple):
    features: NDArray[np.float32]  # (images, D · layers)
    names: list[str]
    labels: NDArray[np.int64] | None
    classes: list[str]


def pretrain(
    data: Data | None = None,
    out: str | Path = "run",
    *,
    recipe: str | None = None,
    resume: bool = False,
    device: str | None = None,
    **settings: Any,
) -> Result:
    """Pretrains an encoder on images and writes a run folder.

    data: a folder of images of any depth, `scenes` for the embedded ones, or a uint8 array.
    recipe: the name of a recipe that comes with the package, `name@variant`, or a YAML file.
    resume: goes on with the run in `out`; starts it where there is none.
    settings: any names of `fp.Settings`, over those of the recipe.
    """
    if data is not None:  # what is given wins over what a recipe names
        settings["data"] = str(data) if isinstance(data, str | Path) else None
    chosen = settings_from(settings, recipe=recipe)
    images = chosen.data if data is None else data
    if images is None:
        raise ValueError("no images were named: give a folder, or `scenes` for the embedded ones")
    with processes(device) as ranks:
        size, progress = image_size(chosen)[0], Tally("scenes") if ranks.is_main else None
        source = open_source(images, image_size=size, progress=progress)
        return train(chosen, source, Path(out), ranks, resume=resume)


def load(path: str | Path, encoder: Which = "target", device: str | None = None) -> Encoder:
    """The encoder of a run: the target encoder, or `encoder="context"` for the other."""
    return load_encoder(Path(path), encoder).to(pick_device(device or "cpu"))


def features(
    run: str | Path,
    data: Data,
    *,
    encoder: Which = "target",
    layers: int = 1,
    device: str | None = None,
) -> Features:
    """Frozen features of every image: token means after the final norm, layers side by side."""
    model = load(run, encoder).to(pick_device(device))
    height = model.grid[0] * model.patch_size
    source = open_source(data, image_size=height, progress=Tally("scenes"))
    return Features(
        extract(model, source, layers=layers, progress=Tally("features")).numpy(),
        [source.name(index) for index in range(len(source))],
        source.labels,
        source.classes,
    )


def demo(
    out: str | Path = "demo-run", *, minutes: float = 5, seed: int = 0, device: str | None = None
) -> "Demo":
    """Pretrains with and without StoP on the embedded scenes, probes both and writes a report."""
    from flexpredict.demonstration import (
        run_demo,  # draws figures: nobody else has to wait for matplotlib
    )

    return run_demo(Path(out), minutes=minutes, seed=seed, device=device)
