"""Scenes per second on one core, against a plain renderer in the same run.

The reference renders scene by scene and object by object, and tries every ray of the picture on
every object: `flexpredict.data.render` without its batches and bounding boxes. Its pictures are
the same to the bit.

    OMP_NUM_THREADS=1 python benchmarks/scenes.py
"""

import time

import numpy as np

from flexpredict.data.render import Scenes, _Block
from flexpredict.data.scenes import describe, render


def plain(scenes: Scenes, size: int) -> np.ndarray:
    images = []
    for index in range(len(scenes.count)):
        one = {name: value[index : index + 1] for name, value in vars(scenes).items()}
        block = _Block(Scenes(**one), size)
        for box in (block.body_box, block.shadow_box):
            box[:2], box[2:] = 0, block.samples
        images.append(block.render().images)
    return np.concatenate(images)


def main() -> None:
    count = 256
    for size in (64, 128):
        scenes = describe(0, np.arange(count))
        render(scenes, size)  # the first call pays for memory
        rates, plain_rates = [], []
        for _ in range(3):
            start = time.perf_counter()
            images = render(describe(0, np.arange(count)), size).images
            rates.append(count / (time.perf_counter() - start))
            few = count // 8
            start = time.perf_counter()
            reference = plain(describe(0, np.arange(few)), size)
            plain_rates.append(few / (time.perf_counter() - start))
            assert np.array_equal(images[:few], reference)
        rate, plain_rate = np.median(rates), np.median(plain_rates)
        print(
            f"{size:4d} px: {rate:7.1f} scenes/s on one core; plain {plain_rate:6.1f};"
            f" ratio {rate / plain_rate:.1f}"
        )


if __name__ == "__main__":
    main()
