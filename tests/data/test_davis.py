"""DAVIS videos: miniatures as published, broken ones, and a real sample where it is."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from miniatures import SAFELY
from PIL import Image

from flexpredict.data.sources.davis import open_davis, palette, write_mask

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

# Background, two objects and void.
MASK = np.array([[0, 1, 1, 255], [0, 2, 2, 255], [0, 0, 2, 255]], dtype=np.uint8)


def _davis(root: Path, *names: str, frames: int = 3) -> Path:
    for name in names:
        for index in range(frames):
            frame = root / "JPEGImages/480p" / name / f"{index:05d}.jpg"
            mask = root / "Annotations/480p" / name / f"{index:05d}.png"
            frame.parent.mkdir(parents=True, exist_ok=True)
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 3), (80 * index, 0, 0)).save(frame, quality=100)
            write_mask(mask, np.roll(MASK, index, axis=0))
    return root


def _list(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("inner", ["", "DAVIS"])
def test_davis__frames_and_masks_in_order(inner: str, tmp_path: Path) -> None:
    _davis(tmp_path / inner, "b", "a")
    videos = open_davis(tmp_path, "2017")
    assert [video.name for video in videos] == ["a", "b"]
    assert [path.name for path in videos[0].frames] == ["00000.jpg", "00001.jpg", "00002.jpg"]
    assert videos[1].frame(2).shape == (3, 4, 3)
    assert abs(int(videos[1].frame(2)[0, 0, 0]) - 160) < 4
    expected = np.where(MASK == 255, 0, MASK)  # void counts as background
    np.testing.assert_array_equal(videos[0].mask(0), expected)
    np.testing.assert_array_equal(videos[0].mask(2), np.roll(expected, 2, axis=0))


def test_davis__2016_has_one_object(tmp_path: Path) -> None:
    root = _davis(tmp_path, "a")
    folder = root / "Annotations/480p/a"
    Image.fromarray(MASK).save(folder / "00001.png")  # gray
    colour = np.repeat(MASK[..., None], 4, axis=2)
    colour[..., 3] = 255  # opaque everywhere: only colour tells the object
    Image.fromarray(colour).save(folder / "00002.png")
    (video,) = open_davis(root, "2016")
    for index, mask in enumerate((MASK, MASK, MASK)):
        np.testing.assert_array_equal(video.mask(index), (mask > 0).astype(np.uint8))
        assert video.mask(index).dtype == np.uint8


def test_davis__lists_choose_the_validation_part(tmp_path: Path) -> None:
    root = _davis(tmp_path, "a", "b", "c", frames=2)
    _list(root / "ImageSets/2017/val.txt", "c", "a")
    _list(root / "ImageSets/2016/val.txt", "b")
    assert [video.name for video in open_davis(root, "2017")] == ["c", "a"]
    assert [video.name for video in open_davis(root, "2016")] == ["b"]
    pairs = [
        f"/JPEGImages/480p/{name}/{index:05d}.jpg /Annotations/480p/{name}/{index:05d}.png"
        for name in ("c", "b")
        for index in range(2)
    ]
    (root / "ImageSets/2016/val.txt").unlink()
    _list(root / "ImageSets/480p/val.txt", *pairs)
    assert [video.name for video in open_davis(root, "2016")] == ["c", "b"]
    assert [video.name for video in open_davis(root, "2017", ["b"])] == ["b"]
    (root / "ImageSets/2017/val.txt").unlink()
    with pytest.raises(ValueError, match=r"2017/val\.txt is missing"):
        open_davis(root, "2017")  # not all videos: those to train on are among them


def test_davis__later_masks_may_be_absent(tmp_path: Path) -> None:
    root = _davis(tmp_path, "a")
    (root / "Annotations/480p/a/00001.png").unlink()
    (video,) = open_davis(root, "2017")
    assert [mask is None for mask in video.masks] == [False, True, False]
    with pytest.raises(ValueError, match=r"a has no mask for 00001\.jpg"):
        video.mask(1)
    (root / "Annotations/480p/a/00000.png").unlink()
    with pytest.raises(ValueError, match=r"no mask for its first frame: expected .*00000\.png"):
        open_davis(root, "2017")


def test_davis__what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks JPEGImages/480p: expected it in it or DAVIS/"):
        open_davis(tmp_path, "2017")
    (tmp_path / "JPEGImages/480p").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no videos"):
        open_davis(tmp_path, "2017")
    root = _davis(tmp_path, "a")
    with pytest.raises(ValueError, match=r"has no frames of z: expected JPEGImages/480p/z/\*\.jpg"):
        open_davis(root, "2017", ["a", "z"])
    with pytest.raises(ValueError, match="no DAVIS 2018: choose 2016 or 2017"):
        open_davis(root, "2018")  # type: ignore[arg-type]
    mask = root / "Annotations/480p/a/00001.png"
    write_mask(mask, MASK[:2])
    with pytest.raises(ValueError, match=r"00001\.png is 4×2: expected 4×3, the size of"):
        open_davis(root, "2017")
    Image.new("RGB", (4, 3)).save(mask)
    with pytest.raises(ValueError, match="expected numbers of objects, found RGB colours"):
        open_davis(root, "2017")[0].mask(1)
    mask.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"00001\.png cannot be read as an image"):
        open_davis(root, "2017")


def test_davis__a_truncated_frame_or_mask_gets_a_sentence(tmp_path: Path) -> None:
    root = _davis(tmp_path, "a")
    frame, mask = root / "JPEGImages/480p/a/00001.jpg", root / "Annotations/480p/a/00001.png"
    (video,) = open_davis(root, "2017")
    frame.write_bytes(frame.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"00001\.jpg cannot be read as an image"):
        video.frame(1)
    mask.write_bytes(mask.read_bytes()[:-24])
    with pytest.raises(ValueError, match=r"00001\.png cannot be read as a mask"):
        video.mask(1)


def test_write_mask__every_index_reads_back(tmp_path: Path) -> None:
    mask = np.arange(256, dtype=np.uint8).reshape(8, 32)
    write_mask(tmp_path / "mask.png", mask)
    assert [path.name for path in tmp_path.iterdir()] == ["mask.png"]
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), mask)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), palette()[mask])
    for wrong in (mask.astype(np.int64), mask[None]):
        with pytest.raises(ValueError, match="a mask is uint8"):
            write_mask(tmp_path / "wrong.png", wrong)  # type: ignore[arg-type]


def test_palette__known_colours_of_pascal_voc() -> None:
    colours = {
        0: (0, 0, 0),
        1: (128, 0, 0),  # aeroplane
        2: (0, 128, 0),
        3: (128, 128, 0),
        7: (128, 128, 128),
        8: (64, 0, 0),
        15: (192, 128, 128),  # person
        20: (0, 64, 128),  # monitor
        255: (224, 224, 192),  # the outlines
    }
    assert {index: tuple(palette()[index].tolist()) for index in colours} == colours
    assert len(np.unique(palette(), axis=0)) == 256


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder shared/data is not beside the project")
def test_davis__real_sample_of_2016(tmp_path: Path) -> None:
    with tarfile.open(SHARED / "davis2016-480p-sample.tar") as archive:
        archive.extractall(tmp_path, **SAFELY)
    videos = open_davis(tmp_path, "2016")
    assert {video.name: len(video.frames) for video in videos} == {
        "blackswan": 50,
        "car-shadow": 40,
    }
    for video in videos:
        assert None not in video.masks
        for index in (0, len(video.frames) - 1):
            assert video.frame(index).shape == (480, 854, 3)
            mask = video.mask(index)
            assert mask.shape == (480, 854)
            assert np.unique(mask).tolist() == [0, 1]
            assert 0.01 < mask.mean() < 0.5
