"""Segment your own video: draw the objects in the first frame, the features carry them on.

Frames are images in a folder, in the order of their names; the mask is a PNG of the first frame's
size whose values are the numbers of objects, 0 for none. No training, no labels.

Run: python examples/segment_video.py run/ frames/ first-mask.png masks/
"""

import argparse
from pathlib import Path

import flexpredict as fp
from flexpredict.data.sources.davis import Video, write_mask
from flexpredict.evaluate.video import Following, encoder_features, segment


def main(arguments: list[str] | None = None) -> list[Path]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("frames", type=Path)
    parser.add_argument("mask", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=480, help="Shorter side of the frames.")
    given = parser.parse_args(arguments)
    frames = sorted(path for path in given.frames.iterdir() if path.is_file())
    video = Video(given.frames.name, frames, [given.mask, *[None] * (len(frames) - 1)])
    encoder = fp.load(given.run)
    how = Following(size=given.size)
    features, grid = encoder_features(encoder, video, how)
    given.out.mkdir(parents=True, exist_ok=True)
    written = []
    for frame, mask in zip(
        frames, segment(video, features, grid, encoder.patch_size, how), strict=True
    ):
        path = given.out / f"{frame.stem}.png"
        write_mask(path, mask)
        written.append(path)
        print(f"{len(written)} of {len(frames)}: {path}")
    return written


if __name__ == "__main__":
    main()
