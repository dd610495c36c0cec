"""Recipes for fine-tuning: those of the papers, as far as their texts tell, and one for small sets.

Section 3.4 of the specification has the sources. In short: StoP's papers give no recipe; I-JEPA's
for 1 % of the labels is adapted from MAE's, and what it does not say is taken from MAE.
"""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from flexpredict.engine.precision import Precision

Pooling = Literal["norm-mean", "mean-norm"]
RAND_AUGMENT = "rand-m9-mstd0.5-inc1"
Share = Annotated[float, Field(ge=0, le=1)]
AtLeast0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


@dataclass(
    frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)
class FinetuneSettings:
    """Everything that changes the result; the defaults are what MAE and I-JEPA have in common."""

    epochs: Count
    batch_size: Count
    lr: Above0 | None = None  # the peak as it is, or
    lr_per_256: Above0 | None = None  # per 256 images of the batch, MAE's base learning rate
    weight_decay: AtLeast0 = 0.05
    betas: tuple[Share, Share] = (0.9, 0.999)
    layer_decay: Annotated[float, Field(gt=0, le=1)] = (
        0.75  # a layer learns at this share of the rate of the one above it
    )
    warmup_epochs: AtLeast0 = 5  # from 0
    min_lr: AtLeast0 = 1e-6
    label_smoothing: Share = 0.1
    randaugment: bool | str = RAND_AUGMENT  # True is the same
    mixup: AtLeast0 = 0.0
    cutmix: AtLeast0 = 0.0
    random_erasing: Share = 0.0  # the share of images
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.0  # in the last block; less below
    crop_scale: tuple[Share, Share] | None = (0.08, 1.0)  # None: the whole image, squashed
    flip: bool = True
    test_margin: Annotated[float, Field(ge=1)] = (
        256 / 224
    )  # test images cover this × the size before the middle is cut out
    head_init_std: AtLeast0 = 2e-5
    # norm-mean: the pretrained norm, then the mean over tokens [our default: I-JEPA does not say];
    # mean-norm: MAE's, the mean and then a fresh norm in place of the pretrained one.
    pooling: Pooling = "norm-mean"
    seed: int = 0
    precision: Precision = "auto"
    accumulate: Count = 1  # parts a batch is computed in, where memory is short

    def __post_init__(self) -> None:
        if (self.lr is None) == (self.lr_per_256 is None):
            raise ValueError("fine-tuning needs either lr or lr_per_256: set one of the two")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} does not fit into epochs={self.epochs}: "
                f"train for longer than the warm-up"
            )
        if self.crop_scale and not 0 < self.crop_scale[0] <= self.crop_scale[1]:
            raise ValueError(
                f"crop_scale={list(self.crop_scale)} does not fit: shares of an image, as [0.08, 1]"
            )
        if max(self.betas) == 1:
            raise ValueError(f"betas={list(self.betas)} does not fit: both have to be below 1")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into accumulate={self.accumulate} "
                f"parts"
            )

    @property
    def peak_lr(self) -> float:
        """The learning rate at the end of the warm-up."""
        if self.lr is not None:
            return self.lr
        assert self.lr_per_256 is not None
        return self.lr_per_256 * self.batch_size / 256


# I-JEPA, 1 % of ImageNet's labels, ViT-L/16: 50 epochs, batch 512, lr 3e-5, weight decay 0.05,
# layer decay 0.75, label smoothing 0.1, RandAugment, crops of 0.08 to 1, flips; no mixup, cutmix,
# erasing or drop path (the defaults above). Warm-up, least lr and the head's init are MAE's. The
# text does not say whether the lr is absolute or MAE's per 256 images: `-per-256` reads it so.
_IJEPA_L = FinetuneSettings(epochs=50, batch_size=512, lr=3e-5, weight_decay=0.05)
_IJEPA_H = replace(_IJEPA_L, weight_decay=0.4)  # the one difference for ViT-H/14

# MAE, all of ImageNet: batch 1024, weight decay 0.05, erasing 0.25, mixup 0.8, cutmix 1, and its
# own pooling. Label smoothing and RandAugment are those that I-JEPA's recipe took over.
_MAE = FinetuneSettings(
    epochs=50,
    batch_size=1024,
    lr_per_256=1e-3,
    random_erasing=0.25,
    mixup=0.8,
    cutmix=1.0,
    pooling="mean-norm",
)

PRESETS: dict[str, FinetuneSettings] = {
    "ijepa-1%-l16": _IJEPA_L,
    "ijepa-1%-l16-per-256": replace(_IJEPA_L, lr=None, lr_per_256=3e-5),
    "ijepa-1%-h14": _IJEPA_H,
    "ijepa-1%-h14-per-256": replace(_IJEPA_H, lr=None, lr_per_256=3e-5),
    # I-JEPA ViT-H/16 at 448 px on all of ImageNet, 87.1 published: 50 epochs, base lr 1e-4, batch
    # 528, mixup 0.8, cutmix 1, drop path 0.25, weight decay 0.04, layer decay 0.75, RandAugment as
    # MAE. Erasing is not named, so MAE's stays.
    "ijepa-full-h16-448": replace(
        _MAE,
        batch_size=528,
        lr_per_256=1e-4,
        weight_decay=0.04,
        drop_path=0.25,
        pooling="norm-mean",
    ),
    # MAE's own: B 100 epochs, base lr 5e-4, decay 0.65, drop path 0.1; L and H 50, 1e-3, 0.75 and
    # drop path 0.2 and 0.3.
    "mae-b16": replace(_MAE, epochs=100, lr_per_256=5e-4, layer_decay=0.65, drop_path=0.1),
    "mae-l16": replace(_MAE, drop_path=0.2),
    "mae-h14": replace(_MAE, drop_path=0.3),
    # Ours, for small images and hundreds or a few thousand labels: most of the picture is kept,
    # since a small one has nothing to spare.
    "small": FinetuneSettings(
        epochs=30,
        batch_size=32,
        lr=1e-3,
        warmup_epochs=3,
        randaugment=False,
        crop_scale=(0.7, 1.0),
        test_margin=1.0,
    ),
}
