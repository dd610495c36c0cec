"""The narrow transformer that predicts targets from context. MAE's decoder is the same class."""

import torch
from torch import Tensor, nn

from flexpredict.model.blocks import NORM_EPS, Block, gather, init_weights, run_blocks
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.model.positions import StochasticPositions, sincos_positions


class Predictor(nn.Module):
    """Predicts each target block from [context, block]; blocks do not see each other.

    `positions` says how tokens get their places; A and b are `predictor_embed`, m̃ is `mask_token`,
    under the names of the released checkpoints.
    """

    def __init__(
        self,
        *,
        encoder_dim: int,
        output_dim: int,
        dim: int,
        depth: int,
        heads: int,
        grid: tuple[int, int],
        positions: StochasticPositions,
        learned: bool = False,
        depth_scaled_init: bool = False,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.checkpointing = False
        self.predictor_embed = nn.Linear(encoder_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        table = sincos_positions(*grid, dim)
        self.predictor_pos_embed = nn.Parameter(table[None], requires_grad=learned)
        self.predictor_blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.predictor_norm = nn.LayerNorm(dim, eps=NORM_EPS)
        self.predictor_proj = nn.Linear(dim, output_dim)
        self.positions = positions
        self.depth_scaled_init = depth_scaled_init
        self.init_weights()
        if positions.form == "released" and positions.noise_on_masked:
            self.mask_token.requires_grad_(False)  # nothing uses it: docs/fidelity.md, 2

    def init_weights(self) -> None:
        """Draws the weights anew; what only some variants have comes last, so that variants that
        start from one seed share all the weights they have in common."""
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        init_weights(self, depth_scaled=self.depth_scaled_init)
        if self.predictor_pos_embed.requires_grad:  # learned, Table 6
            nn.init.normal_(self.predictor_pos_embed, std=0.02)
        self.positions.init_weights()

    def forward(self, features: Tensor, masks: Masks, draws: Draws | None = None) -> Tensor:
        """Context features (B, C, D) -> predictions (B, K, T, output_dim)."""
        batch, blocks, targets = masks.targets.shape
        table = self.predictor_pos_embed.expand(batch, -1, -1)
        context = self.positions.context(
            features, gather(table, masks.context), self.predictor_embed, draws
        )
        masked = self.positions.masked(
            gather(table, masks.targets),
            self.predictor_embed,
            self.mask_token[:, None],
            draws,
            context,
        )
        context = context[:, None].expand(-1, blocks, -1, -1)  # (B, K, C, P)
        x = torch.cat([context, masked], dim=2).flatten(0, 1)  # (B · K, C + T, P)
        x = run_blocks(self.predictor_blocks, x, targets, checkpointing=self.checkpointing)
        x = self.predictor_proj(self.predictor_norm(x))
        return x.unflatten(0, (batch, blocks))

    def penalty(self) -> Tensor:
        """What the size of A costs; zero unless asked for."""
        return self.positions.penalty(self.predictor_embed)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.checkpointing = enable
