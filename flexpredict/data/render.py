"""What a scene is, and what it looks like: a ray caster for whole batches of scenes.

Only sums, products, quotients, square roots and roundings are used, element by element, never a
matrix product or a library's sine: IEEE 754 fixes their results, so that a picture has the same
bits alone, in any batch and on any machine.

Letters: B scenes, K places for objects, S samples along an image side, n rays under study.
"""

from dataclasses import dataclass

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
    total = len(scenes.count)
    images = np.empty((total, size, size, 3), np.uint8)
    objects = np.empty((total, size, size), np.int8)
    depth = np.empty((total, size, size), np.float32)
    for start in range(0, total, _BLOCK):
        part = slice(start, start + _BLOCK)
        block = _Block(Scenes(**{name: value[part] for name, value in vars(scenes).items()}), size)
        for place, shape, scene in block.groups():
            block.draw(place, shape, scene)
        for place, shape, scene in block.groups():
            block.cast_shadow(place, shape, scene)
        images[part] = _develop(block.ground_colour() + block.object_colour())
        first = (-1, size, _SAMPLES, size, _SAMPLES)
        objects[part] = block.seen.reshape(first)[:, :, 0, :, 0]
        depth[part] = block.depth.reshape(first)[:, :, 0, :, 0]
    return Rendering(images, objects, depth)


def _develop(colour: Floats) -> NDArray[np.uint8]:
    """Linear colours as bytes, with a gamma of 2 and a soft shoulder that spares bright hues."""
    colour = colour / (1 + 0.25 * colour)
    return (np.sqrt(np.minimum(colour, 1)) * 255 + 0.5).astype(np.uint8)


class _Block:
    """The buffers of one block of scenes, flat over scene, row and column of the samples."""

    def __init__(self, scenes: Scenes, size: int) -> None:
        self.scenes, self.size, self.samples = scenes, size, size * _SAMPLES
        # Sample (x, y) looks along corner + x·along + y·down, which is 1 unit forward.
        right, up, forward = np.moveaxis(scenes.axes, 1, 0)
        step = (1 / (self.samples * scenes.focal))[:, None]
        self.along, self.down = right * step, -up * step  # (B, 3)
        self.corner = forward - (self.along + self.down) * np.float32((self.samples - 1) / 2)
        y = np.arange(self.samples, dtype=np.float32)
        ground = self._ground_depth(y)  # (B, S)
        self.depth = np.repeat(ground.ravel(), self.samples)  # (B·S·S,)
        self.seen = np.zeros(self.depth.shape, np.int8)
        self.lit = np.ones(self.depth.shape, np.float32)  # 0 in a cast shadow
        self.open = np.ones(self.depth.shape, np.float32)  # below 1 beside an object's foot

    def _ground_depth(self, y: Floats) -> Floats:
        """Depth (B, len(y)) of the ground in rows y; a camera without roll has one for a row."""
        rise = self.corner[:, 2, None] + y * self.down[:, 2, None]
        return self.scenes.eye[:, 2, None] / np.maximum(-rise, 1e-2)

    def groups(self) -> list[tuple[int, int, Ints]]:
        """(place, shape, scenes that have this shape there): at most one object in a scene."""
        count, shape = self.scenes.count, self.scenes.shape
        groups = [
            (place, kind, np.flatnonzero((count > place) & (shape[:, place] == kind)))
            for place in range(shape.shape[1])
            for kind in (SPHERE, CUBE, CYLINDER)
        ]
        return [group for group in groups if len(group[2])]

    def draw(self, place: int, shape: int, scene: Ints) -> None:
        """Keep these objects where they are nearer than what was drawn before."""
        rays = self._rays(scene, place, self._corners(scene, place))
        enter, leave = _interval(shape, rays.origin, rays.direction)
        nearer = (enter < leave) & (enter < self.depth[rays.sample])
        sample = rays.sample[nearer]
        self.depth[sample] = enter[nearer]
        self.seen[sample] = place + 1

    def cast_shadow(self, place: int, shape: int, scene: Ints) -> None:
        """Darken what these objects hide from the light, and the ground about their feet."""
        body = self._corners(scene, place)
        light = self.scenes.light[scene]
        fallen = body - (light / light[:, 2:])[:, None] * body[..., 2:]
        foot = self._corners(scene, place, spread=_CONTACT)[:, ::2]
        rays = self._rays(scene, place, np.concatenate([body, fallen, foot], axis=1))
        point = rays.origin + self.depth[rays.sample] * rays.direction
        towards = _turned(light.T, self.scenes.turn[scene, place].T)[:, rays.owner]
        enter, leave = _interval(shape, point, towards)
        # A convex object needs no shadow of its own: it faces away from the light there.
        hidden = (enter < leave) & (leave > 0) & (self.seen[rays.sample] != place + 1)
        self.lit[rays.sample[hidden]] = 0
        near = np.maximum(1 - (point[0] ** 2 + point[1] ** 2) / _CONTACT**2, 0)
        self.open[rays.sample] *= 1 - 0.6 * near * near * np.clip(-point[2], 0, 1)

    def _corners(self, scene: Ints, place: int, spread: float = 1) -> Floats:
        """Corners (n, 8, 3) of the bounding cubes, the odd ones on top."""
        edge = self._edge(scene, place)[:, None]
        cos, sin = (self.scenes.turn[scene, place, axis, None] for axis in (0, 1))
        x, y, z = _CORNERS.T
        corner = np.stack([cos * x - sin * y, sin * x + cos * y, z + 0 * cos], axis=-1)
        reach = np.stack([edge * spread, edge * spread, edge], axis=-1)
        return corner * reach + self.scenes.position[scene, place, None]

    def _edge(self, scene: Ints, place: int | Ints) -> Floats:
        return self.scenes.size[scene, place] * EXTENT[self.scenes.shape[scene, place]]

    def _rays(self, scene: Ints, place: int, hull: Floats) -> "_Rays":
        """The samples that could see something of the hull of these points (n, m, 3)."""
        scenes = self.scenes
        offset = hull - scenes.eye[scene, None]
        x, y, depth = (_dot(offset.T, scenes.axes[scene, axis].T[:, None]) for axis in range(3))
        scale = scenes.focal[scene] * self.samples / np.maximum(depth, 0.1)  # (m, n)
        x, y = np.float32((self.samples - 1) / 2) + np.stack([x, -y]) * scale
        low = np.clip([np.ceil(x.min(0)), np.ceil(y.min(0))], 0, self.samples).astype(np.intp)
        high = np.clip([np.floor(x.max(0)), np.floor(y.max(0))], -1, self.samples - 1)
        x_run, y_run = np.maximum(high.astype(np.intp) + 1 - low, 0)

        turn, edge = scenes.turn[scene, place].T, self._edge(scene, place)
        eye = _turned((scenes.eye[scene] - scenes.position[scene, place]).T, turn) / edge
        corner, along, down = (
            _turned(vector[scene].T, turn) / edge for vector in (self.corner, self.along, self.down)
        )
        of_row, row = _runs(low[1], y_run)
        of_sample, column = _runs(low[0][of_row], x_run[of_row])
        left = corner[:, of_row] + row.astype(np.float32) * down[:, of_row]
        owner = of_row[of_sample]
        direction = left[:, of_sample] + column.astype(np.float32) * along[:, owner]
        start = (scene[of_row] * self.samples + row) * self.samples
        return _Rays(start[of_sample] + column, owner, eye[:, owner], direction)

    def ground_colour(self) -> Floats:
        """The ground's share (B, size, size, 3) of every pixel: texture by pixel, light by sample."""
        scenes = self.scenes
        middle = np.arange(self.size, dtype=np.float32) * _SAMPLES + np.float32(_SAMPLES / 2 - 0.5)
        depth = self._ground_depth(middle)[:, :, None]
        x, y = (
            scenes.eye[:, axis, None, None]
            + depth
            * (
                self.corner[:, axis, None, None]
                + middle[:, None] * self.down[:, axis, None, None]
                + middle * self.along[:, axis, None, None]
            )
            for axis in (0, 1)
        )
        across, ahead, shift_u, shift_v, sharp, stripes, warp = scenes.texture.T[..., None, None]
        u, v = across * x + ahead * y + shift_u, across * y - ahead * x + shift_v
        u, v = u + warp * _wave(0.37 * v), v + warp * _wave(0.43 * u)
        pattern = np.clip(sharp * _wave(u) * (stripes + (1 - stripes) * _wave(v)), -1, 1)
        fade = 1 / (
            1 + (depth * depth / 225) ** 2
        )  # far away the pattern would be finer than the pixels
        mix = (0.5 + 0.5 * pattern * fade)[..., None]
        tone, other = scenes.ground[:, :, None, None].transpose(1, 0, 2, 3, 4)
        pool = (1 / (1 + (x * x + y * y) / 160))[..., None]  # the lamp is near enough to be seen
        bare = np.where(self.seen == 0, self.open, 0)
        shade, sun = self._pixels(bare), self._pixels(bare * self.lit)
        direct = scenes.light_colour * scenes.light[:, 2:]
        ambient = scenes.sky[:, None, None] * shade[..., None]
        return (
            (tone + (other - tone) * mix)
            * pool
            * (ambient + direct[:, None, None] * sun[..., None])
        )

    def _pixels(self, values: Floats) -> Floats:
        """Means (B, size, size) of the samples of every pixel."""
        grid = values.reshape(-1, self.size, _SAMPLES, self.size, _SAMPLES)
        rows = grid[:, :, 0] + grid[:, :, 1]
        return (rows[..., 0] + rows[..., 1]) / _SAMPLES**2

    def object_colour(self) -> Floats:
        """The objects' share (B, size, size, 3) of every pixel."""
        scenes, samples = self.scenes, self.samples
        sample = np.flatnonzero(self.seen)
        rest, column = np.divmod(sample, samples)
        scene, row = np.divmod(rest, samples)
        place = self.seen[sample].astype(np.intp) - 1
        direction = (
            self.corner.T[:, scene]
            + row.astype(np.float32) * self.down.T[:, scene]
            + column.astype(np.float32) * self.along.T[:, scene]
        )  # (3, n)
        offset = (scenes.eye[scene] - scenes.position[scene, place]).T
        turn = scenes.turn[scene, place].T
        point = _turned(offset + self.depth[sample] * direction, turn) / self._edge(scene, place)
        normal = _turned(_normal(scenes.shape[scene, place], point), np.stack([turn[0], -turn[1]]))

        look = direction / np.sqrt(_dot(direction, direction))
        light, light_colour = scenes.light[scene].T, scenes.light_colour[scene].T
        lit, open_ = self.lit[sample], self.open[sample]
        half = light - look
        gloss = np.maximum(_dot(normal, half), 0) / np.sqrt(_dot(half, half))
        broad = gloss**2
        for _ in range(3):
            broad = broad * broad  # the 16th power: a loop, as a library's power has no fixed bits
        narrow = broad * broad * broad * broad
        sky, floor = scenes.sky[scene].T, scenes.ground[:, 0][scene].T
        bounce = floor * (sky + 0.5 * light_colour)
        ambient = (sky * (0.6 + 0.4 * normal[2]) + 0.2 * bounce * (1 - normal[2])) * open_
        diffuse = ambient + light_colour * (np.maximum(_dot(normal, light), 0) * lit)
        mirror = look[2] - 2 * _dot(normal, look) * normal[2]  # height of the reflected ray
        above = np.clip(0.5 + 2.5 * mirror, 0, 1)
        around = sky * (2.4 - 1.6 * np.abs(mirror)) * above + 0.6 * bounce * (1 - above) * open_
        colour = scenes.colour[scene, place].T
        metal = scenes.material[scene, place] == METAL
        rubber_look = colour * diffuse + 0.10 * broad * lit * light_colour
        metal_look = colour * (0.3 * diffuse + 0.9 * around) + 0.9 * narrow * lit * light_colour
        shown = np.where(metal, metal_look, rubber_look) / np.float32(_SAMPLES**2)
        pixel = (scene * self.size + row // _SAMPLES) * self.size + column // _SAMPLES
        shape = (len(scenes.count), self.size, self.size)
        return np.stack(
            [np.bincount(pixel, part, np.prod(shape)).reshape(shape) for part in shown], axis=-1
        ).astype(np.float32)


@dataclass(frozen=True)
class _Rays:
    """Rays as one object in each scene has them: its bounding cube is −1 … 1."""

    sample: Ints  # (n,) place in the buffers
    owner: Ints  # (n,) which of the scenes asked for
    origin: Floats  # (3, n) the eye
    direction: Floats  # (3, n) per unit of depth


def _runs(start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Runs start, start + 1, … of these lengths end to end: the run of each entry, and the entry."""
    owner = np.repeat(np.arange(len(length)), length)
    return owner, np.arange(len(owner)) + (start - np.cumsum(length) + length)[owner]


def _dot(a: Floats, b: Floats) -> Floats:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _turned(vector: Floats, turn: Floats) -> Floats:
    """World vectors (3, n) as an object turned by these cosines and sines (2, n) has them."""
    cos, sin = turn
    x, y, z = vector
    return np.stack([cos * x + sin * y, cos * y - sin * x, z])


def _wave(x: Floats) -> Floats:
    """A smooth wave of period 1 and range −1 … 1."""
    ramp = 1 - 4 * np.abs(x - np.rint(x))
    return ramp * (1.5 - 0.5 * ramp * ramp)


def _interval(shape: int, origin: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Where rays (3, n) enter and leave a shape of half edge 1; a miss enters after it leaves."""
    round_axes = {SPHERE: 3, CUBE: 0, CYLINDER: 2}[shape]
    enter, leave = np.float32(-np.inf), np.float32(np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        if round_axes:
            a = sum(direction[axis] ** 2 for axis in range(round_axes))
            b = sum(origin[axis] * direction[axis] for axis in range(round_axes))
            c = sum(origin[axis] ** 2 for axis in range(round_axes)) - 1
            root = np.sqrt(b * b - a * c)  # not a number for a miss, and so are its comparisons
            enter, leave = (-b - root) / a, (root - b) / a
        for axis in range(round_axes, 3):
            inverse = 1 / direction[axis]
            middle, reach = -origin[axis] * inverse, np.abs(inverse)
            enter = np.maximum(enter, middle - reach)
            leave = np.minimum(leave, middle + reach)
    return enter, leave


def _normal(shape: NDArray[np.int8], point: Floats) -> Floats:
    """Unit normals (3, n) at points on shapes of half edge 1."""
    size = np.abs(point)
    face = np.where(size == size.max(axis=0), np.sign(point), 0)
    side = np.stack([point[0], point[1], 0 * point[2]])
    lid = np.stack([side[2], side[2], np.sign(point[2])])
    barrel = np.where(point[2] ** 2 > point[0] ** 2 + point[1] ** 2, lid, side)
    return np.where(shape == SPHERE, point, np.where(shape == CUBE, face, barrel))
