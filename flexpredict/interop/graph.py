"""An encoder as an ONNX graph: any batch, and any size where asked."""

import logging
import warnings
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from flexpredict.interop.extras import need
from flexpredict.model.blocks import run_blocks
from flexpredict.model.positions import sincos_positions
from flexpredict.model.vit import Encoder, Resize, interpolate_positions, patchify

Output = Literal["features", "maps"]
_MOST = 256  # patches along a side
_MOST_BYTES = 1_500_000_000  # one ONNX file holds at most 2 GiB


class _Graph(nn.Module):
    """Normalised images (B, c, H, W) to features (B, D) or maps (B, D, h, w).

    resize: how positions come about at any size; None: at the encoder's own size only.
    """

    sides: Tensor

    def __init__(self, encoder: Encoder, output: Output, resize: Resize | None) -> None:
        super().__init__()
        self.encoder, self.output, self.resize = encoder, output, resize
        # A sin-cos table is one of columns beside one of rows, which are the same.
        table = sincos_positions(1, _MOST, encoder.dim)
        self.register_buffer("sides", table[:, : encoder.dim // 2])

    def forward(self, images: Tensor) -> Tensor:
        encoder = self.encoder
        rows, columns = (side // encoder.patch_size for side in images.shape[-2:])
        x = encoder.patch_embed(patchify(images, encoder.patch_size))
        x = x + self._positions(rows, columns)
        tokens = encoder.norm(run_blocks(encoder.blocks, x))
        if self.output == "features":
            return tokens.mean(1)
        return tokens.transpose(1, 2).unflatten(2, (rows, columns))

    def _positions(self, rows: int, columns: int) -> Tensor:
        if self.resize is None:
            return self.encoder.pos_embed
        if self.resize == "interpolate":
            return interpolate_positions(self.encoder.pos_embed, self.encoder.grid, (rows, columns))
        across = self.sides[None, :columns].expand(rows, -1, -1)
        down = self.sides[:rows, None].expand(-1, columns, -1)
        return torch.cat([across, down], dim=2).flatten(0, 1)[None]


def write_graph(encoder: Encoder, path: Path, output: Output, resize: Resize | None) -> None:
    """Inputs are called `images`, outputs `features` or `maps`."""
    need("onnx", "onnx")
    need("onnxscript", "onnx")
    graph = _Graph(encoder, output, resize).eval()
    height, width = (side * encoder.patch_size for side in encoder.grid)
    shape: dict[int, object] = {0: torch.export.Dim("batch", min=1)}
    if resize is not None:
        patch = encoder.patch_size
        shape[2] = patch * torch.export.Dim("rows", min=1, max=_MOST)
        shape[3] = patch * torch.export.Dim("columns", min=1, max=_MOST)
        height, width = height + patch, width + 2 * patch  # a size that stands for no other
    example = torch.zeros(2, encoder.in_channels, height, width)
    large = sum(p.numel() * p.element_size() for p in encoder.parameters()) > _MOST_BYTES
    told = logging.getLogger("torch.onnx")
    level = told.level
    told.setLevel(logging.ERROR)  # it misses torchvision, whose operators no encoder has
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            graph,
            (example,),
            path,
            input_names=["images"],
            output_names=[output],
            dynamic_shapes={"images": shape},
            dynamo=True,
            external_data=large,
            verbose=False,
        )
    told.setLevel(level)


def run_graph(path: Path, images: Tensor) -> Tensor:
    """What onnxruntime makes of it."""
    session = need("onnxruntime", "onnx").InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(found)
