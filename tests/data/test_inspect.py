"""What `flexpredict data inspect` says of sets whose content is known."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image

from flexpredict.config import parse_overrides
from flexpredict.data import inspect as module
from flexpredict.data import processes
from flexpredict.data.decode import decode
from flexpredict.data.inspect import Broken, contact_sheet, inspect, write_sheet
from flexpredict.data.sources import MemorySource, Source, open_source

NOISE = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), dtype=np.uint8)


def _save(path: Path, pixels: np.ndarray, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def _mixed(folder: Path) -> Path:
    """Two classes; 3 usable images of 3 formats, of 600 + 600 + 150 pixels, and 3 broken ones."""
    _save(folder / "a" / "1.png", NOISE[0])
    _save(folder / "a" / "2.jpg", NOISE[1])
    _save(folder / "b" / "3.png", NOISE[2][:10, :15])  # saved as what it is not called
    (folder / "b" / "3.png").rename(folder / "b" / "3.gif")
    _save(folder / "b" / "4.webp", NOISE[3])
    whole = (folder / "a" / "2.jpg").read_bytes()
    (folder / "b" / "4.webp").write_bytes(b"")
    (folder / "b" / "5 [red]\n.png").write_bytes(b"a letter, renamed")
    (folder / "b" / "6.jpg").write_bytes(whole[:300])
    return folder


def _expected(images: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.concatenate([image.reshape(-1, image.shape[2]) for image in images]) / 255
    return pixels.mean(axis=0), pixels.std(axis=0)


def test_statistics__of_known_images() -> None:
    black_and_white = np.zeros((2, 4, 4, 3), np.uint8)
    black_and_white[1] = 255
    black_and_white[:, :, :, 2] = 51
    found = inspect(MemorySource(black_and_white))
    assert found.mean == [0.5, 0.5, 0.2]
    assert found.std == [0.5, 0.5, 0.0]
    found = inspect(MemorySource(NOISE))
    mean, std = _expected(list(NOISE))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(found.std, std, rtol=1e-13)


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_statistics__of_any_number_of_channels(channels: int) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 9, 8, channels), dtype=np.uint8)
    found = inspect(MemorySource(images), channels=channels)
    mean, std = _expected(list(images))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(found.std, std, rtol=1e-13)
    assert found.formats == {"pixels": 3}
    assert (found.smallest, found.frequent) == ((8, 9), [((8, 9), 3)])


def test_statistics__weigh_pixels_not_images(tmp_path: Path) -> None:
    source = open_source(_mixed(tmp_path))
    found = inspect(source)
    usable = [decode(source.read(index)) for index in (0, 1, 2)]
    mean, std = _expected(usable)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(found.std, std, rtol=1e-13)


def test_counts__sizes_and_formats(tmp_path: Path) -> None:
    folder = _mixed(tmp_path)
    found = inspect(open_source(folder))
    assert (found.images, found.labelled, found.classes) == (6, True, 2)
    assert (found.fewest_per_class, found.most_per_class) == (2, 4)
    assert found.formats == {"png": 2, "jpeg": 1}  # by content
    assert (found.smallest, found.median, found.largest) == ((15, 10), (30, 20), (30, 20))
    assert found.frequent == [((30, 20), 2), ((15, 10), 1)]
    assert found.bytes == sum(path.stat().st_size for path in folder.rglob("*.*"))


def test_median__is_the_image_in_the_middle(tmp_path: Path) -> None:
    for number, width in enumerate((1, 9, 9, 5, 2)):
        _save(tmp_path / f"{number}.png", np.zeros((2, width, 3), np.uint8))
    assert inspect(open_source(tmp_path)).median == (5, 2)


def test_formats__every_one_by_its_content(tmp_path: Path) -> None:
    kinds = {"jpg": "jpeg", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp",
             "tif": "tiff", "ppm": "ppm", "avif": "avif"}  # fmt: skip
    for suffix in kinds:
        _save(tmp_path / f"image.{suffix}", NOISE[0])
    (tmp_path / "list.txt").write_text("".join(f"image.{suffix}\n" for suffix in kinds))
    found = inspect(open_source(tmp_path / "list.txt"))
    assert found.formats == dict.fromkeys(sorted(kinds.values()), 1)


def test_broken__all_are_named(tmp_path: Path) -> None:
    source = open_source(_mixed(tmp_path))
    found = inspect(source)
    assert [one.name for one in found.broken] == ["b/4.webp", "b/5 [red]\n.png", "b/6.jpg"]
    assert found.broken[:2] == [
        Broken("b/4.webp", "the file is empty"),
        Broken("b/5 [red]\n.png", "it is no image of a known kind"),
    ]
    (tmp_path / "a" / "1.png").unlink()  # after it was listed
    assert inspect(source).broken[0] == Broken("a/1.png", "No such file or directory")


def test_broken__and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"")
    found = inspect(open_source(tmp_path))
    assert (found.images, len(found.broken), found.labelled) == (1, 1, False)
    assert found.mean is found.std is found.median is None
    assert contact_sheet(open_source(tmp_path)).size == (120, 120)


def test_workers__change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(_mixed(tmp_path))
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "_BLOCK", 1)
    alone = inspect(source, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 6) for done in range(1, 7)]
    assert inspect(source, workers=2) == alone


def test_workers__none_for_few_images_or_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processes_to_start", lambda: 8)
    pixels = MemorySource(np.zeros((500, 1, 1, 3), np.uint8))

    class Encoded(MemorySource):
        def read(self, index: int) -> bytes:  # type: ignore[override]
            if index == 0:
                raise OSError("a file that cannot be read")
            return bytes(500_000)

    assert processes.workers_for(pixels, None) == 1
    assert processes.workers_for(Encoded(pixels.images), None) == 8
    assert processes.workers_for(Encoded(pixels.images[:499]), None) == 1
    monkeypatch.setattr(processes, "_LITTLE", 300_000_000)
    assert processes.workers_for(Encoded(pixels.images), None) == 1
    assert processes.workers_for(pixels, 3) == 3


def _colours(count: int) -> Source:
    """Image n is n in red, twice as wide as high."""
    images = np.zeros((count, 20, 40, 3), np.uint8)
    images[..., 0] = np.arange(count)[:, None, None]
    return MemorySource(images)


@pytest.mark.parametrize(
    ("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (5, 3, 2), (48, 8, 6), (250, 8, 6)]
)
def test_sheet__size_and_evenly_spaced_images(count: int, columns: int, rows: int) -> None:
    sheet = contact_sheet(_colours(count))
    assert sheet.size == (columns * 116 + 4, rows * 116 + 4)
    shown = min(count, 48)
    for place in range(shown):
        left, top = 4 + place % columns * 116, 4 + place // columns * 116
        assert sheet.getpixel((left + 56, top + 56)) == (place * count // shown, 0, 0)
        assert sheet.getpixel((left + 56, top + 10)) == (255, 255, 255)  # the shape is kept


def test_sheet__of_noise_stays_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (48, 112, 112, 3), dtype=np.uint8)
    write_sheet(contact_sheet(MemorySource(noise)), tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size < 2_000_000
    assert os.listdir(tmp_path) == ["sheet.png"]


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_sheet__of_any_number_of_channels(channels: int) -> None:
    images = np.full((1, 1, 300, channels), 70, np.uint8)  # and a very flat one
    sheet = contact_sheet(MemorySource(images), channels=channels)
    assert sheet.getpixel((60, 59)) == (70, 70, 70)


def test_command__one_json_object(tmp_path: Path, command: Command) -> None:
    folder, sheet = _mixed(tmp_path / "mixed"), tmp_path / "sheet.png"
    code, out, _ = command("data", "inspect", folder, "--sheet", sheet, "--json")
    assert code == 0  # with broken files too
    found = json.loads(out)
    assert list(found) == [
        "source", "images", "bytes", "labelled", "classes", "fewest_per_class", "most_per_class",
        "formats", "smallest", "median", "largest", "frequent", "channels", "mean", "std",
        "broken", "doubts", "sheet",
    ]  # fmt: skip
    assert found["broken"][0] == {"name": "b/4.webp", "reason": "the file is empty"}
    assert found["frequent"] == [[[30, 20], 2], [[15, 10], 1]]
    assert found["mean"] == inspect(open_source(folder)).mean
    with Image.open(sheet) as image:
        assert image.size == (3 * 116 + 4, 2 * 116 + 4)


def test_command__for_a_person(tmp_path: Path, command: Command) -> None:
    folder = _mixed(tmp_path / "mixed")
    os.close(os.open(os.fsencode(folder) + b"/b/\xff.png", os.O_CREAT | os.O_WRONLY))
    code, out, err = command("data", "inspect", folder)
    assert code == 0
    assert "images: 7/7" in err
    assert "2 of 2 to 5 images" in out
    assert "b/5 [red]\ufffd.png: it is no image of a known kind" in out
    assert "b/\ufffd.png: the file is empty" in out
    line = next(line for line in out.splitlines() if line.startswith("mean"))
    pasted = line.partition("--set ")[2].strip().replace("'", "")
    mean = parse_overrides([pasted])["mean"]
    np.testing.assert_allclose(mean, inspect(open_source(folder)).mean or [], atol=5e-5)


def test_command__embedded_scenes_and_layouts(command: Command) -> None:
    code, out, _ = command("data", "inspect", "scenes:3", "--json")
    assert code == 0
    assert json.loads(out)["frequent"] == [[[64, 64], 3]]
    code, out, _ = command(
        "data", "inspect", "scenes:3", "--layout=scenes-count", "--split=train", "--json"
    )
    assert (json.loads(out)["images"], json.loads(out)["classes"]) == (3, 8)


Arguments = Callable[[Path], list[str | Path]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (lambda at: [at / "none"], "no such folder"),
        (lambda at: [at, "--sheet", at / "sheet.jpg"], "is written to a .png file"),
        (lambda at: [at, "--sheet", at / "none" / "sheet.png"], "there is no folder"),
        (lambda at: [at, "--sheet", at / "a" / "1.png"], "exists already"),
        (lambda at: [at, "--split", "train"], "without a layout"),
    ],
)
def test_command__wrong_input_gets_one_sentence(
    tmp_path: Path, command: Command, arguments: Arguments, reason: str
) -> None:
    _save(tmp_path / "a" / "1.png", NOISE[0])
    before = sorted(tmp_path.rglob("*"))
    code, out, err = command("data", "inspect", *arguments(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["inspect", "index", "shard"])
def test_help__shows_an_example(name: str, command: Command) -> None:
    code, text, _ = command("data", name, "--help")
    assert code == 0
    assert f"Example: flexpredict data {name}" in text
