"""What a scene is, and what it looks like: a ray caster for whole batches of scenes.

Only sums, products, quotients, square roots and roundings are used, element by element, never a
matrix product or a library's sine: IEEE 754 fixes their results, so that a picture has the same
bits alone, in any batch and on any machine.

Letters: B scenes, K places for objects, S samples along an image side, n rays under study.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]

SPHERE, CUBE, CYLINDER = 0, 1, 2
RUBBER, METAL = 0, 1

# Half the edge of a shape's bounding cube for an object of size 1: the three look equally large.
EXTENT = np.array([1.0, 0.8, 0.86], np.float32)

_SAMPLES = 2  # samples along a pixel's side
_BLOCK = 32  # scenes at a time: their buffers stay in the processor's cache
_CONTACT = 1.7  # how far an object darkens the ground that it stands on, in half edges
_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float32)


@dataclass(frozen=True)
class Scenes:
    """B scenes of up to K objects. The ground is z = 0; lengths share one unit; colours are linear.

    Places beyond `count` are ignored. Things are moved with `dataclasses.replace`.
    """

    count: NDArray[np.int64]  # (B,) objects in use
    shape: NDArray[np.int8]  # (B, K) SPHERE, CUBE or CYLINDER
    material: NDArray[np.int8]  # (B, K) RUBBER or METAL
    size: Floats  # (B, K) a sphere's radius; other shapes look about as large
    position: Floats  # (B, K, 3) centre
    turn: Floats  # (B, K, 2) cosine and sine of the rotation about the vertical
    colour: Floats  # (B, K, 3)
    eye: Floats  # (B, 3) where the camera is
    axes: Floats  # (B, 3, 3) its unit vectors: right, up, forward
    focal: Floats  # (B,) focal length, in image sides
    light: Floats  # (B, 3) unit vector towards the light
    light_colour: Floats  # (B, 3) colour times intensity
    sky: Floats  # (B, 3) ambient light
    ground: Floats  # (B, 2, 3) the two tones of the ground
    texture: Floats  # (B, 7) its pattern, see `_ground`


@dataclass(frozen=True)
class Rendering:
    """Pictures with what is seen where, taken at the first of each pixel's samples."""

    images: NDArray[np.uint8]  # (B, size, size, 3)
    objects: NDArray[np.int8]  # (B, size, size) 0 is the ground, i is the scene's i-th object
    depth: Floats  # (B, size, size) along the camera's forward axis


def render(scenes: Scenes, size: int = 64) -> Rendering:
    """Square pictures of `size` pixels."""
    if size < 1:
        raise ValueError(f"size is {size} pixels; it must be at least 1, such as 64")
    parts = [slice(first, first + _BLOCK) for first in range(0, max(len(scenes.count), 1), _BLOCK)]
    blocks = [
        _Block(Scenes(**{name: value[part] for name, value in vars(scenes).items()}), size).render()
        for part in parts
    ]
    return Rendering(
        np.concatenate([block.images for block in blocks]),
        np.concatenate([block.objects for block in blocks]),
        np.concatenate([block.depth for block in blocks]),
    )


def _develop(colour: Floats) -> NDArray[np.uint8]:
    """Linear colours (3, …) as bytes (…, 3): a gamma of 2, and a soft shoulder for bright hues."""
    colour = np.minimum(colour / (1 + 0.25 * colour), 1)
    return np.moveaxis((np.sqrt(colour) * 255 + 0.5).astype(np.uint8), 0, -1)


class _Block:
    """The buffers of one block of scenes, flat over scene, row and column of the samples.

    Vectors have their three parts first, (3, …): long inner loops are what makes numpy fast.
    """

    def __init__(self, scenes: Scenes, size: int) -> None:
        self.scenes, self.size, self.samples = scenes, size, size * _SAMPLES
        right, up, forward = np.ascontiguousarray(scenes.axes.transpose(1, 2, 0))  # (3, B)
        # Sample (x, y) looks along corner + x·along + y·down, which is 1 unit forward.
        along, down = right / (self.samples * scenes.focal), -up / (self.samples * scenes.focal)
        corner = forward - (along + down) * np.float32((self.samples - 1) / 2)
        self.frame = corner, along, down  # (3, B) each

        # The same as every object has it, when its bounding cube is −1 … 1: (3, B, K) each.
        self.edge = scenes.size * EXTENT[scenes.shape]
        turn = np.moveaxis(scenes.turn, -1, 0)
        eye = np.moveaxis(scenes.eye[:, None] - scenes.position, -1, 0)
        self.origin = _turned(eye, turn) / self.edge
        self.rays = [_turned(part[..., None], turn) / self.edge for part in self.frame]
        self.light = _turned(scenes.light.T[..., None], turn)
        self.body_box, self.shadow_box = self._boxes(right, up, forward)

        ground = self._ground_depth(np.arange(self.samples, dtype=np.float32))  # (B, S)
        self.depth = np.repeat(ground.ravel(), self.samples)  # (B·S·S,)
        self.seen = np.zeros(self.depth.shape, np.int8)
        self.lit = np.ones(self.depth.shape, np.float32)  # 0 in a cast shadow
        self.open = np.ones(self.depth.shape, np.float32)  # below 1 about an object's foot

    def _boxes(self, right: Floats, up: Floats, forward: Floats) -> tuple[Ints, Ints]:
        """First x and y, columns and rows (4, B, K) of what could see a body, and its shadow."""
        scenes = self.scenes
        cos, sin = np.moveaxis(scenes.turn, -1, 0)[..., None]
        x, y, z = _CORNERS.T
        square = np.stack([cos * x - sin * y, sin * x + cos * y, z + 0 * cos])  # (3, B, K, 8)
        centre = np.moveaxis(scenes.position, -1, 0)[..., None]
        body = square * self.edge[..., None] + centre
        slant = (scenes.light / scenes.light[:, 2:]).T[..., None, None]
        fallen = body - slant * body[2]
        foot = (
            centre
            + (body - centre) * np.array([_CONTACT, _CONTACT, 1], np.float32)[:, None, None, None]
        )
        eye = scenes.eye.T[..., None, None]
        boxes = []
        for hull in (body, np.concatenate([body, fallen, foot], axis=-1)):
            right_, up_, depth = (
                _dot(hull - eye, axis[..., None, None]) for axis in (right, up, forward)
            )
            scale = scenes.focal[:, None, None] * self.samples / np.maximum(depth, 0.1)
            middle = np.float32((self.samples - 1) / 2)
            place = np.stack([middle + right_ * scale, middle - up_ * scale])
            low = np.clip(np.ceil(place.min(axis=-1)), 0, self.samples)
            high = np.clip(np.floor(place.max(axis=-1)), -1, self.samples - 1)
            box = np.concatenate([low, np.maximum(high + 1 - low, 0)])
            boxes.append(box.astype(np.intp))
        return boxes[0], boxes[1]

    def _ground_depth(self, y: Floats) -> Floats:
        """Depth (B, len(y)) of the ground in rows y; a camera without roll has one for a row."""
        corner, _, down = self.frame
        rise = corner[2][:, None] + y * down[2][:, None]
        depth: Floats = self.scenes.eye[:, 2:] / np.maximum(-rise, 1e-2)
        return depth

    def render(self) -> Rendering:
        groups = self._groups()
        for group in groups:
            self._draw(*group)
        for group in groups:
            self._cast_shadow(*group)
        images = _develop(self._ground_colour() + self._object_colour())
        first = (-1, self.size, _SAMPLES, self.size, _SAMPLES)
        objects, depth = self.seen.reshape(first), self.depth.reshape(first)
        return Rendering(images, objects[:, :, 0, :, 0], depth[:, :, 0, :, 0])

    def _groups(self) -> list[tuple[int, int, Ints]]:
        """(place, shape, scenes that have this shape there): at most one object in a scene."""
        count, shape = self.scenes.count, self.scenes.shape
        groups = [
            (place, kind, np.flatnonzero((count > place) & (shape[:, place] == kind)))
            for place in range(shape.shape[1])
            for kind in (SPHERE, CUBE, CYLINDER)
        ]
        return [group for group in groups if len(group[2])]

    def _draw(self, place: int, shape: int, scene: Ints) -> None:
        """Keep these objects where they are nearer than what was drawn before."""
        sample, rays, (origin,) = self._spread(self.body_box, scene, place, self.origin)
        enter, leave = _interval(shape, origin, rays)
        nearer = np.flatnonzero((enter < leave) & (enter > 0) & (enter < self.depth[sample]))
        self.depth[sample[nearer]] = enter[nearer]
        self.seen[sample[nearer]] = place + 1

    def _cast_shadow(self, place: int, shape: int, scene: Ints) -> None:
        """Darken what these objects hide from the light, and the ground about their feet."""
        sample, point, (origin, light) = self._spread(
            self.shadow_box, scene, place, self.origin, self.light
        )
        point *= self.depth[sample]
        point += origin
        enter, leave = _interval(shape, point, light)
        # A convex object needs no shadow of its own: it faces away from the light there.
        hidden = (enter < leave) & (leave > 0) & (self.seen[sample] != place + 1)
        self.lit[sample[np.flatnonzero(hidden)]] = 0
        near = np.maximum(1 - (point[0] ** 2 + point[1] ** 2) / _CONTACT**2, 0)
        self.open[sample] *= 1 - 0.5 * near * near * np.clip(-point[2], 0, 1)

    def _spread(
        self, box: Ints, scene: Ints, place: int, *constants: Floats
    ) -> tuple[Ints, Floats, list[Floats]]:
        """The samples (n,) in these objects' boxes, their rays (3, n), and constants of each."""
        x, y, columns, rows = box[:, scene, place]
        of_row, row = _runs(y, rows)
        width = columns[of_row]
        column = _runs(x[of_row], width)[1]
        corner, along, down = (part[:, scene, place][:, of_row] for part in self.rays)
        start = (scene[of_row] * self.samples + row) * self.samples
        rays = np.repeat(along, width, axis=1)
        rays *= column.astype(np.float32)
        rays += np.repeat(corner + row.astype(np.float32) * down, width, axis=1)
        spread = [np.repeat(value[:, scene, place], rows * columns, axis=1) for value in constants]
        return np.repeat(start, width) + column, rays, spread

    def _ground_colour(self) -> Floats:
        """The ground's share (3, B, size, size): texture by pixel, light by sample."""
        scenes = self.scenes
        middle = np.arange(self.size, dtype=np.float32) * _SAMPLES + np.float32(_SAMPLES / 2 - 0.5)
        corner, along, down = (part[..., None, None] for part in self.frame)  # (3, B, 1, 1)
        depth = self._ground_depth(middle)[:, :, None]
        left = scenes.eye.T[..., None, None] + depth * (corner + middle[:, None] * down)
        x, y = (left[axis] + (depth * along[axis]) * middle for axis in (0, 1))
        across, ahead, shift_u, shift_v, sharp, stripes, warp = scenes.texture.T[..., None, None]
        u, v = across * x + ahead * y + shift_u, across * y - ahead * x + shift_v
        u, v = u + warp * _wave(0.37 * v), v + warp * _wave(0.43 * u)
        pattern = np.clip(sharp * _wave(u) * (stripes + (1 - stripes) * _wave(v)), -1, 1)
        fade = 1 / (1 + (depth * depth / 225) ** 2)  # far away it would be finer than the pixels
        mix = 0.5 + 0.5 * fade * pattern
        pool = 1 / (1 + (x * x + y * y) / 160)  # the lamp is not as far as the sun
        bare = np.where(self.seen == 0, self.open, np.float32(0))
        shade, bright = self._pixels(bare) * pool, self._pixels(bare * self.lit) * pool
        direct = (scenes.light_colour * scenes.light[:, 2:]).T[..., None, None]
        tone, other = scenes.ground.transpose(1, 2, 0)[..., None, None]
        light: Floats = direct * bright + scenes.sky.T[..., None, None] * shade
        return (tone + (other - tone) * mix) * light

    def _pixels(self, values: Floats) -> Floats:
        """Means (B, size, size) of the samples of every pixel."""
        rows = values.reshape(-1, self.size, _SAMPLES, self.samples)
        pairs = rows[:, :, 0] + rows[:, :, 1]
        means: Floats = (pairs[..., ::2] + pairs[..., 1::2]) * np.float32(1 / _SAMPLES**2)
        return means

    def _object_colour(self) -> Floats:
        """The objects' share (3, B, size, size)."""
        scenes, places = self.scenes, self.scenes.shape.shape[1]
        sample = np.flatnonzero(self.seen)
        line, column = sample // self.samples, sample % self.samples
        scene, row = line // self.samples, line % self.samples
        item = scene * places + self.seen[sample] - 1

        def spread(value: NDArray[Any]) -> NDArray[Any]:
            """Values (…, B, K) of the objects, (…, n) for the samples that see them."""
            return value.reshape(*value.shape[:-2], -1).take(item, axis=-1)

        def over_scene(value: Floats) -> Floats:
            return value.T.take(scene, axis=-1)

        # All in the object's own frame, which shares the vertical with the world.
        corner, along, down = (spread(part) for part in self.rays)
        look = corner + row.astype(np.float32) * down + column.astype(np.float32) * along
        point = spread(self.origin) + self.depth[sample] * look
        normal = _normal(spread(scenes.shape), point)
        look /= np.sqrt(_dot(look, look))
        light, lit, open_ = spread(self.light), self.lit[sample], self.open[sample]
        half = light - look
        gloss = np.maximum(_dot(normal, half) / np.sqrt(_dot(half, half)), np.float32(0))
        broad = _squared(gloss, 4)
        metal = spread(scenes.material == METAL).astype(np.float32)
        shine = 0.06 * broad + metal * (0.14 * broad + 1.2 * _squared(broad, 2))
        direct = over_scene(scenes.light_colour)
        sky = over_scene(scenes.sky)
        bounce = over_scene(scenes.ground[:, 0] * (scenes.sky + 0.5 * scenes.light_colour)) * open_
        diffuse = sky * ((0.6 + 0.4 * normal[2]) * open_) + bounce * (0.2 - 0.2 * normal[2])
        diffuse += direct * (np.maximum(_dot(normal, light), 0) * lit)
        # Metal shows a room whose walls are near: a bright band above a dark floor. The height at
        # which the reflected ray meets them gives flat faces a gradient too.
        height = look[2] - 2 * _dot(normal, look) * normal[2] + 0.45 * point[2] + 0.45
        above = np.clip(0.5 + 3 * height, 0, 1)
        glow = np.maximum(2.8 - 2.1 * height, 0.2)
        around = sky * (glow * above) + bounce * (0.3 - 0.3 * above)
        shown = diffuse * (1 - 0.75 * metal) + around * metal
        shown *= spread(np.moveaxis(scenes.colour, -1, 0))
        shown += direct * (shine * lit)
        shape = (len(scenes.count), self.size, self.size)
        pixel = (scene * self.size + row // _SAMPLES) * self.size + column // _SAMPLES
        total = [
            np.bincount(pixel, part, len(scenes.count) * self.size**2).reshape(shape)
            for part in shown
        ]
        return (np.stack(total) / _SAMPLES**2).astype(np.float32)


def _squared(x: Floats, times: int) -> Floats:
    """x to the power 2^times; a library's power has no fixed bits."""
    for _ in range(times):
        x = x * x
    return x


def _runs(start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Runs start, start + 1, … of these lengths end to end: each entry's run, and the entries."""
    index = np.arange(len(length))
    total = int(length.sum())
    return np.repeat(index, length), np.arange(total) + np.repeat(
        start - np.cumsum(length) + length, length
    )


def _dot(a: Floats, b: Floats) -> Floats:
    product: Floats = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def _turned(vector: Floats, turn: Floats) -> Floats:
    """World vectors (3, …) as objects turned by these cosines and sines (2, …) have them."""
    cos, sin = turn
    x, y, z = vector
    return np.stack([cos * x + sin * y, cos * y - sin * x, z + 0 * cos])


def _wave(x: Floats) -> Floats:
    """A smooth wave of period 1 and range −1 … 1."""
    ramp = 1 - 4 * np.abs(x - np.rint(x))
    wave: Floats = ramp * (1.5 - 0.5 * ramp * ramp)
    return wave


def _interval(shape: int, origin: Floats, rays: Floats) -> tuple[Floats, Floats]:
    """Where rays (3, n) enter and leave a shape of half edge 1; a miss enters after it leaves."""
    (ox, oy, oz), (x, y, z) = origin, rays
    with np.errstate(divide="ignore", invalid="ignore"):
        if shape == CUBE:
            enter, leave = _slab(ox, x)
            enter, leave = _overlap(enter, leave, *_slab(oy, y))
            return _overlap(enter, leave, *_slab(oz, z))
        a, b, c = x * x + y * y, ox * x + oy * y, ox * ox + oy * oy - 1
        if shape == SPHERE:
            a, b, c = a + z * z, b + oz * z, c + oz * oz
        root = np.sqrt(b * b - a * c)  # not a number for a miss, and so compares false
        enter, leave = (-b - root) / a, (root - b) / a
        return (enter, leave) if shape == SPHERE else _overlap(enter, leave, *_slab(oz, z))


def _slab(origin: Floats, rays: Floats) -> tuple[Floats, Floats]:
    inverse = np.float32(1) / rays
    middle, reach = -origin * inverse, np.abs(inverse)
    return middle - reach, middle + reach


def _overlap(enter: Floats, leave: Floats, enter2: Floats, leave2: Floats) -> tuple[Floats, Floats]:
    return np.maximum(enter, enter2), np.minimum(leave, leave2)


def _normal(shape: NDArray[np.int8], point: Floats) -> Floats:
    """Unit normals (3, n) at points on shapes of half edge 1."""
    x, y, z = point
    normal = point.copy()
    barrel, cube = np.flatnonzero(shape == CYLINDER), np.flatnonzero(shape == CUBE)
    lid = (z * z > x * x + y * y)[barrel]
    normal[:2, barrel] *= ~lid
    normal[2, barrel] = np.sign(z[barrel]) * lid
    size = np.abs(point.take(cube, axis=1))
    normal[:, cube] = np.sign(point.take(cube, axis=1)) * (size == size.max(axis=0))
    return normal
