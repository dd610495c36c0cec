"""The embedded data: rendered 3-D scenes in the manner of CLEVR, made from a seed.

A scene is a function of (seed, index). Three to ten spheres, cubes and cylinders stand on a
textured ground; colours, materials, light and camera change from scene to scene, so that no
average of pixels tells what is there. Labels come from the description, whatever the image size:

- count: how many objects, 3 … 10;
- dist: camera depth of the nearest object's centre, in six bins;
- class: shape × material of the largest object. It is the largest in true size and also, with its
  depth taken into account, in the picture, both by a clear margin.
"""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.random import uniforms
from flexpredict.data.render import CUBE, EXTENT, Rendering, Scenes, render

Doubles = NDArray[np.float64]
_Part = tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]  # images and labels

__all__ = ["TASKS", "Rendering", "Scenes", "describe", "labels", "render", "render_set"]

MOST, FEWEST = 10, 3
DIST_EDGES = (8.0, 8.5, 9.0, 9.4, 9.8)  # about a sixth of the scenes in each bin
TASKS = {"count": MOST - FEWEST + 1, "dist": len(DIST_EDGES) + 1, "class": 6}

# Depths between which centres are placed; the nearest one allowed differs between scenes, as else
# ten objects would always reach the front and `dist` would follow from `count`.
_NEAR, _NEAR_SPAN, _FAR = 7.1, 2.9, 12.2
_TRIES = 48
_GAP = 0.1
_APART = 1.05  # of the larger one's radius in the picture: no object hides another entirely
_BLOCK = 128  # scenes made at a time by `render_set`
_RUNNER_UP = 0.75  # of the largest object's size and apparent size, at most

# Colours of objects, for a gamma of 2. On average they are neutral and about as bright as the
# grounds, so that a region's mean does not betray an object.
_PALETTE = np.array(
    [
        (0.62, 0.62, 0.64),  # grey
        (0.84, 0.18, 0.18),  # red
        (0.18, 0.34, 0.92),  # blue
        (0.18, 0.62, 0.26),  # green
        (0.55, 0.36, 0.20),  # brown
        (0.58, 0.28, 0.85),  # purple
        (0.22, 0.80, 0.86),  # cyan
        (0.95, 0.85, 0.24),  # yellow
        (0.95, 0.52, 0.14),  # orange
        (0.95, 0.58, 0.80),  # pink
        (0.45, 0.68, 1.00),  # sky
        (0.94, 0.94, 0.94),  # white
        (0.20, 0.20, 0.24),  # black
    ]
)


def describe(seed: int, indices: NDArray[np.integer]) -> Scenes:
    """The scenes with these indices (B,)."""
    indices = np.asarray(indices)

    def draws(topic: int, *shape: int) -> Doubles:
        """Uniform numbers (B, *shape), for each topic its own."""
        flat = uniforms(seed, indices, topic, count=int(np.prod(shape)))
        return flat.reshape(len(indices), *shape)

    overall = draws(0, 2)
    count = FEWEST + np.floor(overall[:, 0] * TASKS["count"]).astype(np.int64)
    eye, axes, focal = _camera(draws(1, 7))
    kinds = draws(2, MOST, 2)
    shape = np.floor(kinds[..., 0] * 3).astype(np.int8)
    size, position = _place(
        eye, axes, focal, shape, overall[:, 1], draws(3, MOST), draws(4, MOST, _TRIES, 2)
    )
    tangent = draws(5, MOST)  # of half the angle: a quarter turn is all that shows
    turn = np.stack([1 - tangent**2, 2 * tangent], axis=-1) / (1 + tangent**2)[..., None]
    light, light_colour, sky = _light(draws(6, 5))
    ground, texture = _ground(draws(7, 15))
    values = {
        "size": size,
        "position": position,
        "turn": turn,
        "colour": _colours(draws(8, MOST, 5)),
        "eye": eye,
        "axes": axes,
        "focal": focal,
        "light": light,
        "light_colour": light_colour,
        "sky": sky,
        "ground": ground,
        "texture": texture,
    }
    return Scenes(
        count=count,
        shape=shape,
        material=(kinds[..., 1] < 0.5).astype(np.int8),
        **{name: value.astype(np.float32) for name, value in values.items()},
    )


def _between(low: float, high: float, draw: Doubles) -> Doubles:
    return low + (high - low) * draw


def _unit(vector: Doubles) -> Doubles:
    x, y, z = np.moveaxis(vector, -1, 0)
    return vector / np.sqrt(x * x + y * y + z * z)[..., None]


def _camera(draw: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Eye (B, 3), axes (B, 3, 3) and focal length (B,) of a camera that looks down at the scene."""
    wobble = 2 * draw - 1
    eye = np.array([0.0, -7.0, 6.3]) + wobble[:, :3] * np.array([0.6, 0.2, 0.15])
    target = np.array([0.0, 0.6, 0.2]) + wobble[:, 3:6] * np.array([0.25, 0.1, 0.05])
    forward = _unit(target - eye)
    x, y, z = forward.T
    right = _unit(np.stack([y, -x, 0 * z], axis=-1))
    up = np.stack([right[:, 1] * z, -right[:, 0] * z, right[:, 0] * y - right[:, 1] * x], axis=-1)
    return eye, np.stack([right, up, forward], axis=1), _between(1.25, 1.35, draw[:, 6])


def _place(
    eye: Doubles,
    axes: Doubles,
    focal: Doubles,
    shape: NDArray[np.int8],
    start: Doubles,
    draw: Doubles,
    tries: Doubles,
) -> tuple[Doubles, Doubles]:
    """Sizes (B, K) and centres (B, K, 3): apart on the ground, and in view of the camera.

    The first place holds the largest object. Every next one takes the first of its tries (B, K,
    _TRIES, 2) that keeps clear of all before it. Where none does, it takes the roomiest and
    shrinks to fit.
    """
    right, up, forward = (axes[:, axis, None] for axis in range(3))  # (B, 1, 3)
    half_frame = 0.5 / focal[:, None]
    near = _NEAR + _NEAR_SPAN * start[:, None]
    extent = EXTENT.astype(np.float64)[shape]  # (B, K)
    reach = extent * np.where(shape == CUBE, np.sqrt(2), 1)  # on the ground, for size 1
    size = np.zeros(shape.shape)
    centre = np.zeros((*shape.shape, 3))
    view = np.zeros((*shape.shape, 3))  # x and y in the picture at depth 1, and the depth
    for place in range(MOST):
        here, before = np.s_[:, place, None], np.s_[:, None, :place]
        across, ahead = np.moveaxis(tries[:, place], -1, 0)  # (B, T)
        if place == 0:
            depth = near + (_FAR - near) * (0.06 + 0.5 * ahead)  # neither nearest nor farthest
            big = _between(0.95, 1.2, draw[here]) + 0 * depth
        else:
            depth = near + (_FAR - near) * ahead
            most = _RUNNER_UP * size[:, :1] * np.minimum(1, depth / view[:, :1, 2])
            big = np.minimum(_between(0.42, 0.75, draw[here]), most)
        height = extent[here] * big
        # 1.7 sizes hold the corners of a turned cube, and its nearer parts that look larger.
        x = (2 * across - 1) * (half_frame - 1.7 * big / depth)
        y = ((height - eye[:, None, 2]) / depth - forward[..., 2]) / up[..., 2]
        spot = eye[:, None] + depth[..., None] * (
            forward + x[..., None] * right + y[..., None] * up
        )
        aside = spot[:, :, None, :2] - centre[before][..., :2]  # (B, T, place, 2)
        room = np.sqrt((aside**2).sum(-1)) - _GAP - reach[before] * size[before]
        room = room.min(axis=-1, initial=np.inf) / (reach[here] * big)
        seen = view[before]
        apart = (x[..., None] - seen[..., 0]) ** 2 + (y[..., None] - seen[..., 1]) ** 2
        blot = np.maximum((big / depth)[..., None], size[before] / np.maximum(seen[..., 2], 1))
        clear = np.sqrt(apart) / (_APART * blot)
        fit = np.minimum(room, clear.min(axis=-1, initial=np.inf))  # (B, T) at least 1 is good
        pick = np.where((fit >= 1).any(1), (fit >= 1).argmax(1), fit.argmax(1))[:, None]
        x, y, depth, big, room = (
            np.take_along_axis(value, pick, 1)[:, 0] for value in (x, y, depth, big, room)
        )
        size[:, place] = big * np.clip(room, 0.2, 1)
        centre[:, place, :2] = np.take_along_axis(spot, pick[..., None], 1)[:, 0, :2]
        centre[:, place, 2] = extent[:, place] * size[:, place]
        view[:, place] = np.stack([x, y, depth], axis=-1)
    return size, centre


def _light(draw: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Direction, colour and ambient light, (B, 3) each: from warm to cool, and dim to bright."""
    light = _unit(np.concatenate([(2 * draw[:, :2] - 1) * 0.9, np.ones((len(draw), 1))], axis=1))
    warmth = (2 * draw[:, 2:3] - 1) * np.array([0.16, 0.02, -0.2])
    strength = _between(0.65, 1.25, draw[:, 3:4])
    ambient = _between(0.34, 0.55, draw[:, 4:5])
    return light, (1 + warmth) * strength, (1 - 0.5 * warmth) * ambient


def _ground(draw: Doubles) -> tuple[Doubles, Doubles]:
    """Two tones (B, 2, 3) and a pattern (B, 7): tiles, stripes or clouds at any angle."""
    grey = _between(0.18, 0.75, draw[:, :1])
    tone = np.clip(grey + (2 * draw[:, 1:4] - 1) * 0.09, 0, 1)
    other = np.clip(tone * _between(0.62, 1, draw[:, 4:5]) + (draw[:, 5:8] - 0.5) * 0.06, 0, 1)
    heading = _unit(np.stack([*(2 * draw[:, 8:10] - 1).T, 0 * draw[:, 8]], axis=-1))[:, :2]
    pitch = _between(0.25, 0.6, draw[:, 10:11])  # waves per unit of length
    shift = draw[:, 11:13] * 7
    sharp = _between(1, 4, draw[:, 13])
    style = np.floor(draw[:, 14] * 3)
    stripes, warp = style == 1, np.where(style == 2, 0.45, 0.0)
    rest = np.stack([sharp, stripes, warp], axis=-1)
    return np.stack([tone, other], 1) ** 2, np.concatenate([heading * pitch, shift, rest], axis=1)


def _colours(draw: Doubles) -> Doubles:
    """Linear colours (B, K, 3): the palette, each time a little different."""
    hue = _PALETTE[np.floor(draw[..., 0] * len(_PALETTE)).astype(np.intp)]
    varied = hue * _between(0.85, 1.25, draw[..., 1:2]) + (draw[..., 2:5] - 0.5) * 0.1
    return np.clip(varied, 0.02, 1) ** 2


def labels(scenes: Scenes) -> dict[str, NDArray[np.int64]]:
    """The class (B,) of every scene in each of `TASKS`."""
    used = np.arange(scenes.shape.shape[1]) < scenes.count[:, None]  # (B, K)
    offset = scenes.position - scenes.eye[:, None]
    depth = (offset * scenes.axes[:, None, 2]).sum(axis=-1)
    nearest = np.where(used, depth, np.inf).min(axis=1)
    largest = np.where(used, scenes.size, 0).argmax(axis=1)[:, None]
    shape, material = (
        np.take_along_axis(value, largest, 1)[:, 0].astype(np.int64)
        for value in (scenes.shape, scenes.material)
    )
    return {
        "count": scenes.count - FEWEST,
        "dist": np.searchsorted(DIST_EDGES, nearest, side="right").astype(np.int64),
        "class": shape * 2 + material,
    }


def render_set(
    seed: int,
    count: int,
    size: int = 64,
    start: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> _Part:
    """Images (count, size, size, 3) and labels of the scenes start … start + count − 1.

    `progress` is told, block by block, how many scenes are done. The result does not depend on
    `workers`, the number of processes.
    """
    images = np.empty((count, size, size, 3), np.uint8)
    classes = {task: np.empty(count, np.int64) for task in TASKS}
    firsts = range(0, count, _BLOCK)
    task = partial(_render_part, seed, size, start, count)
    with ExitStack() as stack:
        parts: Iterator[_Part] = map(task, firsts)
        if workers > 1:
            pool = ProcessPoolExecutor(
                workers,
                mp_context=get_context("spawn"),
                initializer=signal.signal,  # Ctrl-C is for the process that they work for
                initargs=(signal.SIGINT, signal.SIG_IGN),
            )
            stack.callback(pool.shutdown, cancel_futures=True)  # after Ctrl-C nobody wants the rest
            parts = pool.map(task, firsts)
        for first, (pictures, known) in zip(firsts, parts, strict=True):
            part = slice(first, first + len(pictures))
            images[part] = pictures
            for name, value in known.items():
                classes[name][part] = value
            if progress is not None:
                progress(part.stop)
    return images, classes


def _render_part(seed: int, size: int, start: int, count: int, first: int) -> _Part:
    scenes = describe(seed, np.arange(start + first, start + min(first + _BLOCK, count)))
    return render(scenes, size).images, labels(scenes)
