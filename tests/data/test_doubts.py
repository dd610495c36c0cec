"""What would be lost of images without a word is said."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image

from flexpredict.data.doubts import doubts
from flexpredict.data.sources import MemorySource, open_source
from flexpredict.train.loop import Interrupted

PAGES = np.random.default_rng(0).integers(0, 256, (5, 24, 24), np.uint8)


def _tiff(path: Path, pages: int) -> None:
    first, *others = (Image.fromarray(page) for page in PAGES[:pages])
    first.save(path, save_all=True, append_images=others)


@pytest.mark.parametrize(
    ("pages", "channels", "said"),
    [
        (5, 3, "has 5 pages, of which the first is read: set in_channels=5 for all of them"),
        (3, 3, "has 3 pages, of which the first is read: save it as a colour image"),
        (5, 5, None),
        (1, 3, None),
    ],
)
def test_pages(pages: int, channels: int, said: str | None, tmp_path: Path) -> None:
    for number in range(3):
        _tiff(tmp_path / f"{number}.tiff", pages)
    found = doubts(open_source(tmp_path), channels, (24, 24))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize("scale", [4, 257])
def test_sixteen_bits__of_which_few_are_used(scale: int, tmp_path: Path) -> None:
    pixels = np.array([[0, 255], [100, 200]]).repeat(12, 0).repeat(12, 1).astype(np.uint16) * scale
    Image.fromarray(pixels).save(tmp_path / "a.tiff")
    found = doubts(open_source(tmp_path), 1, (24, 24))
    if scale == 257:
        assert found == []
    else:
        (sentence,) = found
        assert "numbers up to 1,020 are used" in sentence
        assert "4 of 256 grey levels are left" in sentence


def test_pages__in_colour_are_no_channels(tmp_path: Path) -> None:
    first, *others = (Image.fromarray(np.stack([page] * 3, -1)) for page in PAGES)
    first.save(tmp_path / "a.tiff", save_all=True, append_images=others)
    (sentence,) = doubts(open_source(tmp_path), 3, (24, 24))
    assert sentence.endswith("has 5 pages, of which the first is read")


def test_broken__is_no_matter_of_doubts_but_a_stop_is(tmp_path: Path) -> None:
    class Asked(MemorySource):
        def read(self, index: int) -> np.ndarray:
            raise OSError("gone") if index % 2 else Interrupted("stopped")

    (tmp_path / "a.png").write_bytes(b"nothing")
    assert doubts(open_source(tmp_path), 3, (24, 24)) == []
    with pytest.raises(Interrupted):
        doubts(Asked(np.zeros((9, 8, 8, 3), np.uint8)), 3)


def test_alpha__that_is_not_there(tmp_path: Path) -> None:
    Image.fromarray(PAGES[0]).save(tmp_path / "a.png")
    assert "no fourth channel" in doubts(open_source(tmp_path), 4, (24, 24))[0]
    Image.fromarray(np.stack([*PAGES[:4]], -1)).save(tmp_path / "a.png")
    assert doubts(open_source(tmp_path), 4, (24, 24)) == []


def test_small__images_that_are_enlarged(tmp_path: Path, command: Command) -> None:
    source = MemorySource(np.zeros((9, 32, 48, 3), np.uint8))
    assert doubts(source, 3, (32, 48)) == []
    (sentence,) = doubts(source, 3, (224, 224))
    assert "images of up to 32x48 are enlarged to 224x224: set image_size" in sentence
    for number in range(20):
        _tiff(tmp_path / f"{number}.tiff", 5)
    (tmp_path / "broken.png").write_bytes(b"nothing")
    out = ["--out", tmp_path / "run", "--model=vit_nano", "--set=image_size=32x48"]
    fast = ["--set=patch_size=8", "--set=steps=1", "--set=batch_size=4", "--set=workers=0"]
    code, _, err = command("pretrain", tmp_path, *out, *fast)
    assert code == 0, err
    assert err.count("warning: ") == 1  # 24 pixels are nearly 32
    assert "5 pages" in err
    assert "5 pages" in command("data", "inspect", tmp_path)[1]
