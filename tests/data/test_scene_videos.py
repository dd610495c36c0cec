from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.render import CUBE, EXTENT, Rendering, Scenes, render
from flexpredict.data.scene_videos import MOTIONS, describe_video, motion, render_video
from flexpredict.data.sources import scene_videos as source
from flexpredict.data.sources.davis import open_davis, palette
from flexpredict.data.sources.scene_videos import scene_video_folder

SEED, VIDEOS, FRAMES, SIZE = 1, 21, 7, 48
OF_OBJECTS = ("shape", "material", "size", "position", "turn", "colour")


@dataclass
class Clip:
    """A video as described and rendered, with each object also as it would look alone."""

    index: int
    scenes: Scenes
    got: Rendering
    alone: list[Rendering]

    @property
    def number(self) -> int:
        return int(self.scenes.count[0])

    def shown(self, k: int) -> np.ndarray:
        """The pixels of object k, (T, size, size)."""
        return self.got.objects == k + 1

    def visible(self, k: int) -> np.ndarray:
        """The share of object k within the frame that nothing hides, (T,)."""
        return self.shown(k).sum((1, 2)) / (self.alone[k].objects == 1).sum((1, 2))


def only(scenes: Scenes, k: int) -> Scenes:
    values = {name: getattr(scenes, name)[:, k, None] for name in OF_OBJECTS}
    return replace(scenes, count=np.ones_like(scenes.count), **values)


@pytest.fixture(scope="module")
def paths() -> list[Scenes]:
    return [describe_video(SEED, index, 10 * (FRAMES - 1) + 1) for index in range(VIDEOS)]


@pytest.fixture(scope="module")
def clips(paths: list[Scenes]) -> list[Clip]:
    clips = []
    for index, path in enumerate(paths):
        scenes = Scenes(**{field.name: getattr(path, field.name)[::10] for field in fields(path)})
        alone = [render(only(scenes, k), SIZE) for k in range(scenes.count[0])]
        clips.append(Clip(index, scenes, render(scenes, SIZE), alone))
    return clips


def seen_at(scenes: Scenes) -> np.ndarray:
    """Where in the picture the objects' centres are, in sides from its middle, (T, n, 2)."""
    offset = scenes.position - scenes.eye[:, None]
    right, up, depth = np.einsum("tnc,tac->atn", offset, scenes.axes)
    return np.stack([right, up], -1) / depth[..., None] * scenes.focal[:, None, None]


def test_render_video__same_bits_for_the_same_seed_and_index() -> None:
    images, masks = render_video(3, 5, frames=11, size=32)
    assert images.shape == (11, 32, 32, 3)
    assert masks.shape == (11, 32, 32)
    assert images.dtype == masks.dtype == np.uint8
    again, masks_again = render_video(3, 5, frames=11, size=32)
    assert np.array_equal(images, again)
    assert np.array_equal(masks, masks_again)
    whole = render(describe_video(3, 5, 11), 32)  # in one batch
    assert np.array_equal(images, whole.images)
    assert np.array_equal(masks, whole.objects)
    assert not np.array_equal(images, render_video(4, 5, frames=11, size=32)[0])
    assert not np.array_equal(images, render_video(3, 6, frames=11, size=32)[0])


def test_describe_video__paths_do_not_depend_on_the_number_of_frames() -> None:
    fine, coarse, one = (describe_video(2, 2, frames) for frames in (17, 5, 1))
    for field in fields(Scenes):
        value = getattr(fine, field.name)
        np.testing.assert_array_equal(value[::4], getattr(coarse, field.name), field.name)
        np.testing.assert_array_equal(value[:1], getattr(one, field.name), field.name)
    with pytest.raises(ValueError, match="at least 1"):
        describe_video(2, 2, 0)


def test_render_video__all_objects_are_seen_in_the_first_frame(clips: list[Clip]) -> None:
    assert {clip.number for clip in clips} == {3, 4, 5}
    for clip in clips:
        first = clip.got.objects[0]
        assert np.unique(first).tolist() == list(range(clip.number + 1))
        assert not any(edge.any() for edge in (first[0], first[-1], first[:, 0], first[:, -1]))
        for k in range(clip.number):
            assert clip.shown(k)[0].mean() > 0.008  # two of 16 × 16 patches
            assert clip.visible(k)[0] > 0.6


def test_render_video__first_labels_at_any_size() -> None:
    for index in range(12):
        scenes = describe_video(5, index, 1)
        for size in (16, 50):
            labels = np.unique(render(scenes, size).objects)
            assert labels.tolist() == list(range(scenes.count[0] + 1))


def test_describe_video__objects_stand_on_the_ground_and_never_meet(paths: list[Scenes]) -> None:
    for scenes in paths:
        half = scenes.size * EXTENT[scenes.shape]
        np.testing.assert_allclose(scenes.position[..., 2], half, rtol=1e-5)
        reach = np.where(scenes.shape == CUBE, np.sqrt(2), 1) * half
        aside = scenes.position[:, :, None, :2] - scenes.position[:, None, :, :2]
        room = np.hypot(aside[..., 0], aside[..., 1]) - reach[:, :, None] - reach[:, None]
        assert room[:, ~np.eye(scenes.count[0], dtype=bool)].min() > 0.05


def test_describe_video__the_view_is_upright_and_holds_the_objects(paths: list[Scenes]) -> None:
    for scenes in paths:
        products = np.einsum("tac,tbc->tab", scenes.axes, scenes.axes)
        np.testing.assert_allclose(products, np.broadcast_to(np.eye(3), products.shape), atol=1e-5)
        assert np.abs(scenes.axes[:, 0, 2]).max() == 0  # no roll, on which the renderer relies
        np.testing.assert_allclose(np.linalg.norm(scenes.turn, axis=-1), 1, atol=1e-5)
        assert np.abs(seen_at(scenes)).max() < 0.5
        steps = np.linalg.norm(np.diff(seen_at(scenes), axis=0), axis=-1)
        assert steps.max() < 0.05  # of the picture's side: nothing jumps


def test_motion__what_moves_and_what_does_not(clips: list[Clip]) -> None:
    assert {motion(clip.index) for clip in clips} == set(MOTIONS)
    some_stand = 0
    for clip in clips:
        path = clip.scenes.position - clip.scenes.position[0]
        travel = np.linalg.norm(path[-1], axis=-1)  # (n,)
        assert ((travel == 0) | (travel > 2)).all()
        for values in (clip.scenes.position, clip.scenes.turn):
            assert (values == values[0]).all(axis=(0, 2)).tolist() == (travel == 0).tolist()
        still = (clip.got.images[0] == clip.got.images[-1]).all(axis=-1)
        some_stand += 0 < (travel == 0).sum() < clip.number
        if motion(clip.index) == "camera":
            assert not travel.any()
        else:
            assert (travel > 0).sum() >= 2
        if motion(clip.index) == "objects":
            assert (clip.scenes.eye == clip.scenes.eye[0]).all()
            assert still.mean() > 0.3  # ground that no object and no shadow reaches
        else:
            assert still.mean() < 0.15
            ground = (clip.got.objects[[0, -1]] == 0).all(axis=0)
            change = np.abs(clip.got.images[0].astype(float) - clip.got.images[-1])[ground]
            assert change.mean() > 1
    assert some_stand >= 4


def test_motion__masks_go_where_their_objects_go(clips: list[Clip]) -> None:
    rows_columns = np.mgrid[:SIZE, :SIZE] + 0.25  # a mask is taken at a pixel's first sample
    moved, checked = 0, 0
    for clip in clips:
        expected = (0.5 + seen_at(clip.scenes)[..., ::-1] * (-1, 1)) * SIZE  # rows, columns
        for k in range(clip.number):
            whole = clip.visible(k) == 1
            inside = np.abs(seen_at(clip.scenes)[:, k]).max(axis=-1) < 0.35
            for frame in np.flatnonzero(whole & inside):
                middle = rows_columns[:, clip.shown(k)[frame]].mean(axis=1)
                assert np.abs(middle - expected[frame, k]).max() < 0.03 * SIZE
                checked += 1
            if motion(clip.index) == "objects" and clip.shown(k)[-1].any():
                first, last = (rows_columns[:, clip.shown(k)[t]].mean(axis=1) for t in (0, -1))
                moved += bool(np.linalg.norm(last - first) > 0.15 * SIZE)
    assert checked > 200
    assert moved >= 2 * VIDEOS // 3  # two or more in each video of moving objects


def test_occlusion__a_hidden_part_is_hidden_by_something_nearer(clips: list[Clip]) -> None:
    least = []
    for clip in clips:
        for k in range(clip.number):
            body, shown = clip.alone[k].objects == 1, clip.shown(k)
            assert (body | ~shown).all()
            hidden = body & ~shown
            assert (clip.got.objects[hidden] > 0).all()
            assert (clip.got.depth[hidden] <= clip.alone[k].depth[hidden]).all()
        least.append(min(clip.visible(k).min() for k in range(clip.number)))
    # The shares of videos in which an object loses half, and two thirds, of what the frame had.
    assert np.mean(np.array(least) < 0.5) >= 0.3
    assert np.mean(np.array(least) < 0.33) >= 0.1
    assert np.mean(np.array(least) > 0.6) >= 0.1  # and others are easier


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXPREDICT_CACHE", str(tmp_path))
    return tmp_path


def test_scene_video_folder__reads_back_as_davis(cache: Path) -> None:
    told: list[tuple[int, int]] = []
    root = scene_video_folder(3, 4, 48, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [path.name for path in cache.iterdir()] == [root.name]
    videos = open_davis(root, "2017")
    assert [video.name for video in videos] == ["scene-000", "scene-001", "scene-002"]
    for number, video in enumerate(videos):
        images, masks = render_video(0, 2_000_000_000 + number, 4, 48)
        assert [path.name for path in video.frames] == [f"{frame:05d}.jpg" for frame in range(4)]
        for frame in range(4):
            np.testing.assert_array_equal(video.mask(frame), masks[frame])
            assert np.abs(video.frame(frame).astype(float) - images[frame]).mean() < 4
    with Image.open(root / "Annotations/480p/scene-001/00003.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[:15] == palette()[:5].ravel().tolist()


def test_scene_video_folder__is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = scene_video_folder(1, 2, 16)

    def fail(*_: object) -> None:
        raise AssertionError("rendered again")

    monkeypatch.setattr(source, "render_video", fail)
    assert scene_video_folder(1, 2, 16) == root
    for other in ((2, 2, 16), (1, 3, 16), (1, 2, 24)):
        with pytest.raises(AssertionError, match="rendered again"):
            scene_video_folder(*other)
    assert list(cache.iterdir()) == [root]


def test_scene_video_folder__an_interrupted_one_leaves_nothing(cache: Path) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene_video_folder(2, 2, 16, progress=interrupt)
    assert list(cache.iterdir()) == []
    assert len(open_davis(scene_video_folder(2, 2, 16), "2017")) == 2


def test_scene_video_folder__another_process_was_faster(cache: Path) -> None:
    def finish_elsewhere(*_: int) -> None:
        """What the other process leaves, seen when this one is about to rename."""
        (half_made,) = cache.iterdir()
        whole = cache / half_made.name.partition("-")[2] / "ImageSets"
        whole.mkdir(parents=True)

    root = scene_video_folder(1, 2, 16, progress=finish_elsewhere)
    assert list(cache.iterdir()) == [root]
    assert [path.name for path in root.iterdir()] == ["ImageSets"]


@pytest.mark.parametrize("wrong", [{"count": 0}, {"frames": 0}, {"size": -1}])
def test_scene_video_folder__numbers_below_one(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .* at least 1"):
        scene_video_folder(**wrong)
