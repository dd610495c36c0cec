"""Short videos of the embedded scenes: objects on smooth paths, a moving camera, instance masks.

A video is a function of (seed, index), and so are its paths whatever the frame rate and the image
size. A described scene lends its look and its largest objects; they get places and paths of their
own, under a camera that stands lower than in the scenes, as from high above little is ever hidden.
Of the many paths drawn for an object, one is taken that keeps it in view and off the others, and
along which about as much is hidden as this object wishes.

As in the renderer only sums, products, quotients and square roots are used, so that a video has
the same bits on any machine.

Letters: T frames, n objects, P paths, be it those of all objects or the tries for one.
"""

from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.random import uniforms
from flexpredict.data.render import CUBE, EXTENT, Scenes, render
from flexpredict.data.scenes import describe

Doubles = NDArray[np.float64]

MOTIONS = ("objects", "camera", "both")
FEWEST, MOST = 3, 5

_TOPIC = 100  # the first topic of this file's draws; `describe` uses those from 0
_TRIES = 256  # paths drawn for an object
_TIMES = np.linspace(0, 1, 33)  # at which a path is judged
_GAP = 0.1  # between the footprints of two objects, at any time
_FARTHEST = 12.0  # depth of a centre; beyond, an object is hardly more than a patch
_TRAVEL = 2.2  # from a moving object's first place to its last, at least
_PER_OBJECT = ("shape", "material", "size", "position", "turn", "colour")
_BLOCK = 8  # frames rendered at a time, to bound the memory


def motion(index: int) -> str:
    """What moves in the video with this index, one of `MOTIONS`."""
    return MOTIONS[index % len(MOTIONS)]


def render_video(
    seed: int, index: int, frames: int = 24, size: int = 256
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Frames (T, size, size, 3), and masks (T, size, size): 0 is the ground, i the i-th object.

    Every object is seen in the first frame, so that its labels are 1 … n.
    """
    scenes = describe_video(seed, index, frames)
    parts = [slice(first, first + _BLOCK) for first in range(0, frames, _BLOCK)]
    pictures = [
        render(
            Scenes(**{field.name: getattr(scenes, field.name)[part] for field in fields(scenes)}),
            size,
        )
        for part in parts
    ]
    images = np.concatenate([picture.images for picture in pictures])
    masks = np.concatenate([picture.objects for picture in pictures])
    return images, masks.astype(np.uint8)


def describe_video(seed: int, index: int, frames: int = 24) -> Scenes:
    """The scenes (T of them) that the frames show."""
    if frames < 1:
        raise ValueError(f"frames is {frames}; a video has at least 1, such as 24")
    still = _cast(seed, index)
    times = np.arange(frames) / max(frames - 1, 1)
    eye, axes = _camera(seed, index, times)
    paths = _choose(seed, index, still)
    cos, sin = still.turn[0].T.astype(np.float64)[..., None]  # (n, 1) each
    more_cos, more_sin = paths.turns(times)
    turn = np.stack([cos * more_cos - sin * more_sin, sin * more_cos + cos * more_sin], axis=-1)
    moved = {
        "position": _raised(paths.places(times), _height(still)).transpose(1, 0, 2),
        "turn": turn.transpose(1, 0, 2),
        "eye": eye,
        "axes": axes,
    }
    every: dict[str, Any] = {
        field.name: np.repeat(getattr(still, field.name), frames, axis=0) for field in fields(still)
    }
    every.update((name, value.astype(np.float32)) for name, value in moved.items())
    return Scenes(**every)


def _draws(seed: int, index: int, topic: int, *shape: int) -> Doubles:
    return uniforms(seed, index, _TOPIC + topic, count=int(np.prod(shape))).reshape(shape)


def _between(low: float, high: float, draw: Doubles) -> Doubles:
    return low + (high - low) * draw


def _cast(seed: int, index: int) -> Scenes:
    """One scene with its largest objects only: the others would be a patch or less in size."""
    scene = describe(seed, np.array([index]))
    number = FEWEST + int(_draws(seed, index, 0, 1)[0] * (MOST - FEWEST + 1))
    largest = np.argsort(-scene.size[0], kind="stable")[:number]
    kept = {name: getattr(scene, name)[:, largest] for name in _PER_OBJECT}
    return replace(scene, count=np.array([number]), **kept)


def _height(scene: Scenes) -> Doubles:
    """Of the centres (n,) of objects that stand on the ground."""
    return (scene.size[0] * EXTENT[scene.shape[0]]).astype(np.float64)


def _smooth(x: Doubles) -> Doubles:
    """From 0 to 1, at rest before and after."""
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)


def _camera(seed: int, index: int, times: Doubles) -> tuple[Doubles, Doubles]:
    """Eyes (T, 3) and axes (T, 3, 3) of a camera without roll."""
    draw = _draws(seed, index, 1, 12)
    wobble = 2 * draw - 1
    eye = np.array([0.0, -7.4, 5.3]) + wobble[:3] * np.array([0.8, 0.3, 0.5])
    target = np.array([0.0, 0.7, 0.2]) + wobble[3:6] * np.array([0.2, 0.1, 0.05])
    if motion(index) == "objects":
        return _look(eye + 0 * times[:, None], target + 0 * times[:, None])
    # Mostly around the scene, partly past it, nearer or farther, up or down.
    side = np.where(draw[6] < 0.5, -1.0, 1.0)
    way = np.array([side * _between(3.0, 5.5, draw[7]), wobble[8] * 1.2, wobble[9] * 1.0])
    aim = np.array([side * _between(-0.2, 0.9, draw[10]), wobble[11] * 0.3, 0.0])
    share = (0.4 * times + 0.6 * _smooth(times) - 0.5)[:, None]
    return _look(eye + share * way, target + share * aim)


def _look(eye: Doubles, target: Doubles) -> tuple[Doubles, Doubles]:
    x, y, z = (target - eye).T
    level, length = np.sqrt(x * x + y * y), np.sqrt(x * x + y * y + z * z)
    right = np.stack([y, -x, 0 * z]) / level
    forward = np.stack([x, y, z]) / length
    up = np.stack([-x * z, -y * z, level * level]) / (level * length)
    return eye, np.stack([right, up, forward]).transpose(2, 0, 1)


def _seen(position: Doubles, eye: Doubles, axes: Doubles, focal: float) -> Doubles:
    """Across and up in the picture, in sides from its middle, and depth of points, (…, 3)."""
    offset = position - eye
    right, up, depth = (
        offset[..., 0] * axis[..., 0]
        + offset[..., 1] * axis[..., 1]
        + offset[..., 2] * axis[..., 2]
        for axis in np.moveaxis(axes, -2, 0)
    )
    return np.stack([focal * right / depth, focal * up / depth, depth], axis=-1)


def _stand(spot: Doubles, height: Doubles, eye: Doubles, axes: Doubles, focal: float) -> Doubles:
    """Where on the ground (P, 2) an object stands whose centre is seen at these spots (P, 2)."""
    right, up, forward = axes
    ray = forward + (spot[:, :1] * right + spot[:, 1:] * up) / focal
    depth = (height - eye[2]) / ray[:, 2]
    return eye[:2] + depth[:, None] * ray[:, :2]


@dataclass(frozen=True)
class _Paths:
    """P ways to move. What stands has its start as its end, and no spin."""

    start: Doubles  # (P, 2) on the ground
    end: Doubles  # (P, 2)
    bow: Doubles  # (P,) how far the path bends aside, as a share of its length
    leave: Doubles  # (P,) the time at which the motion begins
    arrive: Doubles  # (P,)
    spin: Doubles  # (P,) tangent of half the angle turned on the way

    def progress(self, times: Doubles) -> Doubles:
        """The share (P, T) of the way that is done."""
        leave, arrive = self.leave[:, None], self.arrive[:, None]
        return _smooth((times - leave) / (arrive - leave))

    def places(self, times: Doubles) -> Doubles:
        """Points on the ground, (P, T, 2)."""
        share = self.progress(times)[..., None]
        way = (self.end - self.start)[:, None]
        aside = np.stack([-way[..., 1], way[..., 0]], axis=-1) * self.bow[:, None, None]
        return self.start[:, None] + share * way + 4 * share * (1 - share) * aside

    def turns(self, times: Doubles) -> tuple[Doubles, Doubles]:
        """Cosine and sine (P, T) of the angle turned so far."""
        tangent = self.progress(times) * self.spin[:, None]
        square = tangent * tangent
        return (1 - square) / (1 + square), 2 * tangent / (1 + square)


def _raised(places: Doubles, height: Doubles) -> Doubles:
    """Centres (P, T, 3) above points (P, T, 2) of the ground, at these heights (P,)."""
    level = np.broadcast_to(height[:, None, None], (*places.shape[:-1], 1))
    return np.concatenate([places, level], axis=-1)


def _movers(seed: int, index: int, number: int) -> NDArray[np.bool_]:
    """Which objects move, (n,): two or more, but in some videos not all."""
    if motion(index) == "camera":
        return np.zeros(number, np.bool_)
    rank = np.argsort(_draws(seed, index, 2, number), kind="stable")
    return rank < 2 + int(_draws(seed, index, 3, 1)[0] * (number - 1))


def _choose(seed: int, index: int, still: Scenes) -> _Paths:
    """The paths of all objects. Seldom there is no room for the last: then all are drawn anew."""
    for topic in count(10):
        chosen: list[_Paths] = []
        for place, moves in enumerate(_movers(seed, index, int(still.count[0]))):
            draw = _draws(seed, index, topic, MOST, _TRIES, 9)[place]
            tries = _draw_paths(seed, index, still, place, draw)
            if not moves:
                tries = replace(tries, end=tries.start, spin=0 * tries.spin)
            good, cover = _judge(seed, index, still, chosen, tries)
            if not good.any():
                break
            wish = _between(-0.3, 1.3, draw[0, 8])  # below 0, it wants nothing hidden
            best = np.where(good, np.abs(cover - wish), np.inf).argmin()
            values = {field.name: getattr(tries, field.name)[best, None] for field in fields(tries)}
            chosen.append(_Paths(**values))
        else:
            return _joined(chosen)
    raise AssertionError("the rounds have no end")


def _joined(paths: list[_Paths]) -> _Paths:
    names = [field.name for field in fields(_Paths)]
    return _Paths(**{name: np.concatenate([getattr(p, name) for p in paths]) for name in names})


def _draw_paths(seed: int, index: int, still: Scenes, place: int, draw: Doubles) -> _Paths:
    """Paths from somewhere in the first picture to somewhere in the last."""
    eye, axes = _camera(seed, index, np.array([0.0, 1.0]))
    focal, height = float(still.focal[0]), _height(still)[place]
    low, span = np.array([-0.42, -0.42]), np.array([0.84, 0.72])
    start = _stand(low + span * draw[:, 0:2], height, eye[0], axes[0], focal)
    end = _stand(low + span * draw[:, 2:4], height, eye[1], axes[1], focal)
    return _Paths(
        start=start,
        end=end,
        bow=_between(-0.3, 0.3, draw[:, 4]),
        leave=_between(-0.2, 0.25, draw[:, 5]),  # some are on their way when the video begins
        arrive=_between(0.75, 1.2, draw[:, 6]),
        spin=_between(-0.7, 0.7, draw[:, 7]),
    )


def _judge(
    seed: int, index: int, still: Scenes, before: list[_Paths], tries: _Paths
) -> tuple[NDArray[np.bool_], Doubles]:
    """Which tries for the next object will do beside those before, (P,), and what they hide, (P,).

    The latter is the largest share of an object's width, 0 … 1, that another ever covers. Objects
    are taken for balls here, which is near enough.
    """
    place = len(before)
    focal, size, height = float(still.focal[0]), still.size[0].astype(np.float64), _height(still)
    reach = height * np.where(still.shape[0] == CUBE, np.sqrt(2), 1)  # circles about the footprints
    eye, axes = _camera(seed, index, _TIMES)

    def view(centre: Doubles, size: Doubles) -> tuple[Doubles, Doubles]:
        seen = _seen(centre, eye, axes, focal)
        return seen, focal * size[:, None] / seen[..., 2]

    centre = _raised(tries.places(_TIMES), np.repeat(height[place], len(tries.bow)))  # (P, T, 3)
    seen, radius = view(centre, np.repeat(size[place], len(tries.bow)))
    aside = np.abs(seen[..., :2]).max(axis=-1)
    good = (seen[..., 2] < _FARTHEST).all(axis=1) & (aside + 0.5 * radius < 0.5).all(axis=1)
    good &= aside[:, 0] + 1.6 * radius[:, 0] < 0.5  # the first frame has all, a cube's corners too
    way = tries.end - tries.start
    good &= (way == 0).all(axis=1) | (way[:, 0] ** 2 + way[:, 1] ** 2 > _TRAVEL**2)
    cover = np.zeros(len(good))
    for other, path in enumerate(before):
        its_centre = _raised(path.places(_TIMES), height[other, None])
        good &= (_apart(centre, its_centre) > reach[place] + reach[other] + _GAP).all(axis=1)
        its_seen, its_radius = view(its_centre, size[other, None])
        overlap = radius + its_radius - _apart(seen, its_seen)  # (P, T) in the picture
        good &= overlap[:, 0] < 0.1 * np.minimum(radius, its_radius)[:, 0]
        farther = np.where(seen[..., 2] > its_seen[..., 2], radius, its_radius)
        cover = np.maximum(cover, (overlap / (2 * farther)).max(axis=1))
    return good, np.minimum(cover, 1)


def _apart(points: Doubles, others: Doubles) -> Doubles:
    """Distances by the first two coordinates."""
    x, y = (points[..., axis] - others[..., axis] for axis in (0, 1))
    return np.sqrt(x * x + y * y)
