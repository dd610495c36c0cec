"""StoP in Hugging Face's ViTMAEForPreTraining, unforked: five lines.

The decoder's own projection is A. What enters its first layer has ψ and the mask token already, so
A n is all that is added, and to masked tokens only. Needs the extra hf.
"""

from typing import Any

import torch
import torch.nn.functional as F

from flexpredict import StochasticPositions


def add_stop(model: Any, noise_std: float = 0.25) -> None:
    """model: a ViTMAEForPreTraining, changed in place; train it as before."""
    # fmt: off
    embed, seen = model.decoder.decoder_embed, {}
    stop = StochasticPositions(embed.in_features, embed.out_features, noise_std)
    model.vit.register_forward_hook(lambda _, __, out: seen.update(mask=F.pad(out.mask, (1, 0))))
    model.decoder.decoder_layers[0].register_forward_pre_hook(lambda _, x: torch.where(
        seen["mask"][..., None] > 0, stop.masked(x[0], embed, torch.zeros(())), x[0]))
    # fmt: on
