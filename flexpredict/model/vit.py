"""The encoder: a Vision Transformer without a class token, with the parameter names of timm."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.blocks import NORM_EPS, Block, added, gather, init_weights, run_blocks
from flexpredict.model.positions import sincos_positions

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Size = int | tuple[int, int]
Resize = Literal["recompute", "interpolate"]


class Shape(NamedTuple):
    """The shape of an encoder, and of the predictor that goes with it."""

    dim: int
    depth: int
    heads: int
    mlp_ratio: float
    predictor_dim: int
    predictor_depth: int


# The predictors of base, large and huge are the paper's; giant's depth is I-JEPA's. Those of the
# smaller ones keep the proportions of base: half the encoder's width.
SHAPES = {
    "vit_nano": Shape(64, 4, 2, 4.0, 32, 2),
    "vit_tiny": Shape(192, 12, 3, 4.0, 96, 6),
    "vit_small": Shape(384, 12, 6, 4.0, 192, 6),
    "vit_base": Shape(768, 12, 12, 4.0, 384, 6),
    "vit_large": Shape(1024, 24, 16, 4.0, 384, 12),
    "vit_huge": Shape(1280, 32, 16, 4.0, 384, 12),
    "vit_giant": Shape(1408, 40, 16, 48 / 11, 384, 16),
}


def patchify(images: Tensor, patch: int) -> Tensor:
    """Images as rows of pixels, (B, c, H, W) -> (B, N, c · patch²), channel first in a row."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    parts = images.view(batch, channels, rows, patch, columns, patch)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch**2)


class PatchEmbed(nn.Module):
    """A convolution with stride = kernel, as a product with the pixels of patches."""

    def __init__(self, patch_size: int, in_channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, patches: Tensor) -> Tensor:
        """Rows of pixels, (B, …, c · patch²) -> (B, …, D)"""
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Encoder(nn.Module):
    """A ViT over patches. Images are (B, c, H, W): uint8, or floats that are already normalised."""

    mean: Tensor
    std: Tensor
    fixed = frozenset({"pos_embed"})  # weights that nothing trains

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
        patch_size: int = 16,
        image_size: Size = 224,
        in_channels: int = 3,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        depth_scaled_init: bool = False,
    ) -> None:
        super().__init__()
        height, width = _sides(image_size)
        for name, count in (("patch_size", patch_size), ("in_channels", in_channels)):
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{name}={count!r}: expected a whole number of at least 1")
        if height % patch_size or width % patch_size:
            raise ValueError(
                f"image_size {height}x{width} does not divide into patches of {patch_size}: "
                f"choose a patch_size that divides both sides"
            )
        if not len(mean) == len(std) == in_channels:
            raise ValueError(
                f"{in_channels} channels need {in_channels} means and standard deviations, "
                f"not {len(mean)} and {len(std)}: set mean and std"
            )
        # All it takes to make this encoder again: Encoder(**architecture).
        self.architecture: dict[str, Any] = {
            "dim": dim,
            "depth": depth,
            "heads": heads,
            "mlp_ratio": mlp_ratio,
            "patch_size": patch_size,
            "image_size": (height, width),
            "in_channels": in_channels,
            "mean": tuple(mean),
            "std": tuple(std),
        }
        self.dim = dim
        self.grid = (height // patch_size, width // patch_size)
        self.patch_size = patch_size
        self.in_channels = in_channels
        self.checkpointing = False
        self.sincos = True  # the table is sin-cos; one that was imported may not be
        self.patch_embed = PatchEmbed(patch_size, in_channels, dim)
        table = sincos_positions(*self.grid, dim)
        self.pos_embed = nn.Parameter(table[None], requires_grad=False)
        self.blocks = nn.ModuleList(Block(dim, heads, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS)
        # Not weights: how to treat uint8 images, kept beside the weights in encoder.json.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.depth_scaled_init = depth_scaled_init
        self.init_weights()

    def init_weights(self) -> None:
        """Draws the weights anew."""
        init_weights(self, depth_scaled=self.depth_scaled_init)

    def forward(
        self,
        images: Tensor,
        keep: Tensor | None = None,
        places: Tensor | None = None,
        *,
        resize: Resize = "recompute",
    ) -> Tensor:
        """Tokens after the final norm: (B, N, D), or (B, C, D) of the kept patches only.

        places: (B, S), which of these tokens are wanted, in case it is not all of them.
        """
        x = self.embed(images, keep, resize=resize)
        return self.norm(run_blocks(self.blocks, x, places, checkpointing=self.checkpointing))

    def embed(
        self, images: Tensor, keep: Tensor | None = None, *, resize: Resize = "recompute"
    ) -> Tensor:
        """Patch embeddings with their positions. A kept token carries its true position."""
        if not isinstance(images, Tensor):
            raise ValueError(
                f"the encoder takes images as a tensor, not as {type(images).__name__}: "
                f"torch.from_numpy makes one of an array"
            )
        if images.dtype != torch.uint8:
            if not images.is_floating_point():
                raise ValueError(
                    f"the encoder takes images as uint8, or as floats that are normalised already, "
                    f"not as {str(images.dtype).removeprefix('torch.')}"
                )
            images = images.to(self.mean.dtype)
        if images.ndim != 4:
            raise ValueError(
                f"the encoder takes images as (B, {self.in_channels}, H, W), not "
                f"{tuple(images.shape)}: of one image make a batch by image[None]"
            )
        height, width = images.shape[-2:]
        if images.shape[1] != self.in_channels:
            raise ValueError(
                f"the encoder takes images of {self.in_channels} channels, not {images.shape[1]}"
            )
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"images of {height}x{width} do not divide into patches of {self.patch_size}: "
                f"resize or crop them to a multiple of {self.patch_size}"
            )
        positions = self.positions((height // self.patch_size, width // self.patch_size), resize)
        patches = patchify(images, self.patch_size)
        if keep is None:
            return self.patch_embed(self._normalise_rows(patches)) + positions
        # Only what is kept is normalised and embedded.
        x = self.patch_embed(self._normalise_rows(gather(patches, keep)))
        return x + gather(positions.expand(len(x), -1, -1), keep)

    def layers(
        self, images: Tensor, count: int, *, norm: bool = True, resize: Resize = "recompute"
    ) -> list[Tensor]:
        """Outputs of the last `count` blocks, in depth order, through the final norm if asked."""
        if not 1 <= count <= len(self.blocks):
            raise ValueError(f"this encoder has {len(self.blocks)} layers: cannot give {count}")
        x, branch, bias, kept = self.embed(images, resize=resize), None, None, []
        for depth, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, branch, bias = block.part(x, branch, bias)
            if depth >= len(self.blocks) - count:
                layer = added(x, branch, bias)
                kept.append(self.norm(layer) if norm else layer)
        return kept

    @torch.inference_mode()
    def features(self, images: Tensor, *, layers: int = 1, resize: Resize = "recompute") -> Tensor:
        """(B, D · layers): mean of patch tokens after the final norm, layers side by side."""
        return torch.cat([x.mean(1) for x in self.layers(images, layers, resize=resize)], dim=1)

    @torch.inference_mode()
    def feature_maps(
        self, images: Tensor, *, layers: int = 1, resize: Resize = "recompute"
    ) -> list[Tensor]:
        """The last layers after the final norm as maps, (B, D, h, w) each, in depth order."""
        rows, columns = (side // self.patch_size for side in images.shape[-2:])
        maps = self.layers(images, layers, resize=resize)
        return [x.transpose(1, 2).unflatten(2, (rows, columns)) for x in maps]

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 images to normalised floats; floats pass as they are."""
        if images.dtype != torch.uint8:
            return images
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    def _normalise_rows(self, patches: Tensor) -> Tensor:
        """As `normalise`, of patches as rows of pixels."""
        rows = patches.unflatten(-1, (self.in_channels, -1))
        if patches.dtype == torch.uint8:
            rows = (rows.to(self.mean.dtype) / 255 - self.mean[..., 0]) / self.std[..., 0]
        return rows.flatten(-2)

    def positions(self, grid: tuple[int, int], resize: Resize = "recompute") -> Tensor:
        """The position table of a grid, (1, N, D): as stored, computed anew, or interpolated."""
        if resize not in get_args(Resize):
            raise ValueError(f"resize={resize!r}: choose one of {', '.join(get_args(Resize))}")
        if grid == self.grid:
            return self.pos_embed
        if resize == "recompute":
            if not self.sincos:
                raise ValueError(
                    "the encoder's positions are not sin-cos, so none can be computed for another "
                    "size: choose resize=interpolate"
                )
            return sincos_positions(*grid, self.dim, dtype=self.pos_embed.dtype).to(
                self.pos_embed.device
            )[None]
        return interpolate_positions(self.pos_embed, self.grid, grid)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.checkpointing = enable


def _sides(image_size: Size) -> tuple[int, int]:
    """Height and width."""
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(
            f"image_size={image_size!r}: expected a number of pixels, or a pair of height and width"
        )
    return sides


def interpolate_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A position table (1, N, D) of one grid for another, bicubic."""
    table = table.transpose(1, 2).unflatten(2, old)
    table = F.interpolate(table, size=new, mode="bicubic", align_corners=False)
    return table.flatten(2).transpose(1, 2)


def is_sincos(table: Tensor, grid: tuple[int, int]) -> bool:
    """Whether a table (1, N, D) is the sin-cos one, be it stored in float16."""
    true = sincos_positions(*grid, table.shape[-1])
    return bool((table[0].float().cpu() - true).abs().max() < 2e-3)


def sincos_grid(table: Tensor) -> tuple[int, int] | None:
    """The grid of which a table (1, N, D) is the sin-cos one, if it is one."""
    count = table.shape[1]
    grids = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    return next((grid for grid in grids if is_sincos(table, grid)), None)


def create_encoder(
    model: str = "vit_base",
    *,
    patch_size: int = 16,
    image_size: Size = 224,
    in_channels: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    depth_scaled_init: bool = False,
) -> Encoder:
    """An untrained encoder by name: vit_nano, vit_tiny, vit_small, …, vit_giant."""
    shape = shape_of(model)
    rgb = in_channels == 3
    return Encoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        mlp_ratio=shape.mlp_ratio,
        patch_size=patch_size,
        image_size=image_size,
        in_channels=in_channels,
        mean=mean or (IMAGENET_MEAN if rgb else (0.5,) * in_channels),
        std=std or (IMAGENET_STD if rgb else (0.25,) * in_channels),
        depth_scaled_init=depth_scaled_init,
    )


def shape_of(model: str) -> Shape:
    if model not in SHAPES:
        raise ValueError(f"model {model!r} is not known: choose one of {', '.join(SHAPES)}")
    return SHAPES[model]
