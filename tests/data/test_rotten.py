"""A folder as people have them: what can be used is used, the rest is named, the run goes on."""

import io
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flexpredict as fp

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format=kind, **options)
    return data.getvalue()


def _bomb() -> bytes:
    """A PNG file of some seventy bytes that says it is 60,000 pixels wide and high."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c))
              for c in (header, pixels)]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _usable(folder: Path) -> set[str]:
    image = Image.fromarray(PIXELS)
    turned = image.getexif()
    turned[0x0112] = 6
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    files = {
        "cmyk.jpg": _encoded(image.convert("CMYK"), "JPEG"),
        "palette.png": _encoded(image.quantize(8), "PNG", transparency=bytes(range(8))),
        "alpha.webp": _encoded(image.convert("RGBA"), "WEBP"),
        "16-bit.png": _encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "PNG"),
        "16-bit.tiff": _encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "TIFF"),
        "animated.gif": _encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "turned.jpg": _encoded(image, "JPEG", exif=turned),
        "1x1.png": _encoded(Image.new("RGB", (1, 1)), "PNG"),
        "wide.png": _encoded(Image.new("RGB", (30_000, 20)), "PNG"),
        "wide.jpg": _encoded(Image.new("RGB", (30_000, 20)), "JPEG"),
        "Übermut 日本 🦉.jpg": _encoded(image, "JPEG"),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return set(files)


def _rotten(folder: Path) -> dict[str, str]:
    """Each name and what its reason must hold."""
    image = Image.fromarray(PIXELS)
    files = {
        "truncated.jpg": (_encoded(image, "JPEG")[:700], "truncated"),
        "truncated.png": (_encoded(image, "PNG")[:700], "truncated"),
        "empty.png": (b"", "the file is empty"),
        "text.jpg": (b"Dear diary, today I renamed you.", "no image of a known kind"),
        "bomb.png": (_bomb(), "more than 178,956,970 pixels"),
    }
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    reasons = {name: reason for name, (_, reason) in files.items()}
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "loop").symlink_to(folder, target_is_directory=True)  # must not be entered
    reasons["loop.png"] = "symbolic links"
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    reasons["gone.png"] = "No such file"
    if os.geteuid():  # root reads everything
        (folder / "locked.png").write_bytes(_encoded(image, "PNG"))
        (folder / "locked.png").chmod(0)
        reasons["locked.png"] = "Permission denied"
    return reasons


@pytest.mark.parametrize("workers", [0, 1])
def test_pretrain__goes_on_and_names_each_rotten_file_once(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = tmp_path / "photos", tmp_path / "run"
    folder.mkdir()
    usable, reasons = _usable(folder), _rotten(folder)
    count = len(usable) + len(reasons)
    result = fp.pretrain(
        folder, run, device="cpu", workers=workers, batch_size=count, epochs=3, log_every=1,
        model="vit_nano", patch_size=4, image_size=32, chunk_size=8,
    )  # fmt: skip
    assert result.steps == 3  # one batch is an epoch, so that each file was met three times
    assert result.loss is not None
    assert np.isfinite(result.loss)
    said = f"{len(reasons)} of {count} images could not be used: {run / 'rejected.jsonl'}"
    assert said in capsys.readouterr().err
    lines = [json.loads(line) for line in (run / "rejected.jsonl").read_text().splitlines()]
    assert sorted(line["name"] for line in lines) == sorted(reasons)
    for line in lines:
        assert reasons[line["name"]] in line["reason"], line


def test_pretrain__stops_past_a_share_of_rotten_files(tmp_path: Path) -> None:
    folder, run = tmp_path / "photos", tmp_path / "run"
    folder.mkdir()
    usable, reasons = _usable(folder), _rotten(folder)
    count = len(usable) + len(reasons)
    options = {
        "device": "cpu", "workers": 0, "batch_size": count, "epochs": 3, "model": "vit_nano",
        "patch_size": 4, "image_size": 32, "chunk_size": 8,
    }  # fmt: skip
    share = (len(reasons) - 1) / count
    sentence = f"{len(reasons)} of {count} images cannot be used, more than most_rejected="
    with pytest.raises(ValueError, match=sentence):
        fp.pretrain(folder, run, most_rejected=share, **options)
    assert len((run / "rejected.jsonl").read_text().splitlines()) == len(reasons)
    # Whoever says that this many are fine may go on.
    result = fp.pretrain(folder, run, most_rejected=1, resume=True, **options)
    assert result.steps == 3
    assert len((run / "rejected.jsonl").read_text().splitlines()) == len(reasons)
