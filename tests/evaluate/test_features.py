from pathlib import Path

import numpy as np
import torch

from flexpredict.data.sources import MemorySource, open_source
from flexpredict.evaluate.features import block_means, extract
from flexpredict.model.vit import create_encoder


def test_extract__equals_the_encoder_batch_by_batch(pictures: np.ndarray) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    seen: list[tuple[int, int]] = []
    features = extract(
        encoder,
        MemorySource(pictures),
        layers=2,
        batch_size=40,
        progress=lambda *counts: seen.append(counts),
    )
    torch.testing.assert_close(features, encoder.features(images, layers=2), rtol=1e-4, atol=1e-5)
    assert seen == [(40, 96), (80, 96), (96, 96)]


def test_extract__folder_equals_memory(pictures: np.ndarray, photos: Path) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    source = open_source(photos)
    order = [int(Path(source.name(i)).stem) for i in range(len(source))]
    memory = extract(encoder, MemorySource(pictures))
    torch.testing.assert_close(extract(encoder, source), memory[order], rtol=1e-4, atol=1e-5)


def test_block_means__are_means(pictures: np.ndarray) -> None:
    means = block_means(MemorySource(pictures), 4, image_size=(32, 32)).view(-1, 3, 4, 4)
    expected = pictures[5, 8:16, 16:24, 1].mean()
    assert abs(means[5, 1, 1, 2].item() - expected) < 1e-3
