"""Bytes to pixels: every kind of file with its colours, and files that must be refused."""

import io
import os
import signal
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from flexpredict.data.decode import BadImage, decode
from flexpredict.data.sources import FolderSource
from flexpredict.engine.distributed import raised_by_sigterm
from flexpredict.train.loop import Interrupted

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
WIDE16 = RNG.integers(0, 65536, (20, 30), dtype=np.uint16)


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format=kind, **options)
    return data.getvalue()


def _png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG file of raw rows, for what Pillow cannot write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + end

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _tiff(samples: np.ndarray) -> bytes:
    """An uncompressed little-endian TIFF file whose one page has any number of gray bands."""
    height, width, bands = samples.shape
    tags = {
        256: (3, [width]), 257: (3, [height]), 258: (3, [8] * bands), 259: (3, [1]),
        262: (3, [1]), 273: (4, [0]), 277: (3, [bands]), 278: (3, [height]), 279: (4, [0]),
        338: (3, [0] * (bands - 1)),
    }  # fmt: skip
    after = 8 + 2 + 12 * len(tags) + 4
    far = b""
    places: dict[int, int] = {}
    for tag, (_, values) in tags.items():
        if len(values) > 2:
            places[tag] = after + len(far)
            far += struct.pack(f"<{len(values)}H", *values)
    tags[273], tags[279] = (4, [after + len(far)]), (4, [samples.size])
    entries = b""
    for tag, (kind, values) in tags.items():
        entries += struct.pack("<HHI", tag, kind, len(values))
        if tag in places:
            entries += struct.pack("<I", places[tag])
        else:
            entries += struct.pack("<I" if kind == 4 else f"<{len(values)}H", *values).ljust(
                4, b"\0"
            )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + entries + b"\0\0\0\0" + far + samples.tobytes()


@pytest.mark.parametrize("shape", [(20, 30, 3), (375, 500, 3), (20, 30)])
def test_jpeg__is_what_simplejpeg_gives(shape: tuple[int, ...]) -> None:
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    data = _encoded(Image.fromarray(pixels), "JPEG", quality=80)
    np.testing.assert_array_equal(decode(data), simplejpeg.decode_jpeg(data, colorspace="RGB"))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "BMP"])
def test_colour__is_exact(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = _encoded(Image.fromarray(COLOUR), kind, **options)
    np.testing.assert_array_equal(decode(data), COLOUR)


def test_gray__in_and_out() -> None:
    gray = COLOUR[..., 0]
    data = _encoded(Image.fromarray(gray), "PNG")
    np.testing.assert_array_equal(decode(data, 1)[..., 0], gray)
    np.testing.assert_array_equal(decode(data), np.repeat(gray[..., None], 3, axis=2))
    luma = np.asarray(Image.fromarray(COLOUR).convert("L"))
    np.testing.assert_array_equal(decode(_encoded(Image.fromarray(COLOUR), "PNG"), 1)[..., 0], luma)
    bits = _encoded(Image.fromarray(gray > 100), "PNG")
    np.testing.assert_array_equal(decode(bits, 1)[..., 0], np.where(gray > 100, 255, 0))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits__gray_keeps_the_high_byte(kind: str) -> None:
    data = _encoded(Image.fromarray(WIDE16), kind)
    np.testing.assert_array_equal(decode(data, 1)[..., 0], WIDE16 >> 8)
    np.testing.assert_array_equal(decode(data)[..., 2], WIDE16 >> 8)
    widened = _encoded(Image.fromarray(COLOUR[..., 0].astype(np.uint16) * 257), kind)
    np.testing.assert_array_equal(decode(widened, 1)[..., 0], COLOUR[..., 0])


def test_16_bits__colour_agrees_with_gray() -> None:
    rows = np.repeat(WIDE16[..., None], 3, axis=2).astype(">u2")
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    data = _png(30, 20, bits=16, colour=2, rows=raw)
    np.testing.assert_array_equal(decode(data), np.repeat((WIDE16 >> 8)[..., None], 3, axis=2))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bits__are_refused(dtype: type) -> None:
    data = _encoded(Image.fromarray(WIDE16.astype(dtype)), "TIFF")
    with pytest.raises(BadImage, match="32-bit numbers of no stated range: save it in 8 or 16"):
        decode(data)


def test_palette__gives_its_colours() -> None:
    paletted = Image.fromarray(COLOUR).quantize(16)
    expected = np.asarray(paletted.convert("RGB"))
    np.testing.assert_array_equal(decode(_encoded(paletted, "PNG")), expected)
    with_alpha = _encoded(paletted, "PNG", transparency=bytes(range(16)))  # Pillow warns of these
    np.testing.assert_array_equal(decode(with_alpha), expected)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "MPO"])
def test_animation__first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = _encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    pixels = decode(data)
    assert pixels.shape == (6, 8, 3)
    assert abs(pixels.astype(int) - [255, 0, 0]).max() <= 1


def test_alpha__is_dropped_or_kept() -> None:
    both = np.concatenate([COLOUR, WIDE16[..., None].astype(np.uint8)], axis=2)
    data = _encoded(Image.fromarray(both), "PNG")
    np.testing.assert_array_equal(decode(data), COLOUR)
    np.testing.assert_array_equal(decode(data, 4), both)
    gray = _encoded(Image.fromarray(both[..., 2:]), "PNG")
    np.testing.assert_array_equal(decode(gray, 2), both[..., 2:])


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk__gives_its_colours(kind: str) -> None:
    data = _encoded(Image.new("RGB", (16, 16), (200, 60, 20)).convert("CMYK"), kind)
    assert abs(decode(data).astype(int) - [200, 60, 20]).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif__rotates(kind: str) -> None:
    image = Image.new("RGB", (32, 16), "black")
    image.paste("white", (0, 0, 16, 16))  # the left half
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90° clockwise: left becomes top
    pixels = decode(_encoded(image, kind, exif=exif))
    assert pixels.shape == (32, 16, 3)
    assert pixels[:14].min() > 240
    assert pixels[18:].max() < 15


def test_exif__behind_other_notes() -> None:
    image = Image.new("RGB", (32, 16))
    exif = image.getexif()
    exif[0x0112] = 6
    data = _encoded(image, "JPEG", exif=exif)
    notes = b"\xff\xe2" + struct.pack(">H", 5002) + b"x" * 5000  # such as a colour profile
    assert decode(data[:2] + notes + data[2:]).shape == (32, 16, 3)


def test_exif__damaged_is_no_reason_to_refuse() -> None:
    data = _encoded(Image.fromarray(COLOUR), "JPEG")
    notes = b"Exif\0\0rubbish"
    broken = data[:2] + b"\xff\xe1" + struct.pack(">H", len(notes) + 2) + notes + data[2:]
    assert decode(broken).shape == (20, 30, 3)


def test_exif__rotates_16_bits() -> None:
    image = Image.fromarray(WIDE16)
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    data = _encoded(image, "PNG", exif=exif)
    np.testing.assert_array_equal(decode(data, 1)[..., 0], WIDE16[::-1, ::-1] >> 8)


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
def test_pages__of_a_tiff_are_channels(channels: int) -> None:
    planes = RNG.integers(0, 65536, (channels, 20, 30), dtype=np.uint16)
    pages = [Image.fromarray(plane) for plane in planes]
    data = _encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(decode(data, channels), planes.transpose(1, 2, 0) >> 8)
    assert decode(data).shape == (20, 30, 3)  # the first page, as of any document


def test_pages__that_are_no_channels_are_refused() -> None:
    gray, colour = Image.fromarray(COLOUR[..., 0]), Image.fromarray(COLOUR)
    mixed = _encoded(gray, "TIFF", save_all=True, append_images=[colour])
    with pytest.raises(BadImage, match="page 2 of 2 is RGB: expected gray pages"):
        decode(mixed, 2)
    uneven = _encoded(gray, "TIFF", save_all=True, append_images=[gray.resize((5, 5))])
    with pytest.raises(BadImage, match="pages differ in size"):
        decode(uneven, 2)
    with pytest.raises(BadImage, match="has 3 channels, expected 5: save it as a TIFF file"):
        decode(_encoded(colour, "PNG"), 5)


def test_bands__in_one_page_are_refused_with_a_sentence() -> None:
    np.testing.assert_array_equal(decode(_tiff(COLOUR[..., :1]), 1), COLOUR[..., :1])
    with pytest.raises(BadImage, match="TIFF file of a kind that Pillow does not know"):
        decode(_tiff(RNG.integers(0, 256, (6, 7, 5), dtype=np.uint8)), 5)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF"])
def test_extreme_shapes(kind: str) -> None:
    assert decode(_encoded(Image.new("RGB", (1, 1)), kind)).shape == (1, 1, 3)
    assert decode(_encoded(Image.new("RGB", (30_000, 2)), kind)).shape == (2, 30_000, 3)


def test_bomb__is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(BadImage, match=r"more than 178,956,970 pixels: make it smaller"):
        decode(_png(60_000, 60_000, bits=8, colour=2, rows=b""))
    jpeg = bytearray(_encoded(Image.new("RGB", (16, 16)), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 50_000, 60_000)
    hidden = jpeg[:frame] + b"rubbish" + jpeg[frame:]  # which decoders read over
    for data in (bytes(jpeg), bytes(hidden)):
        for channels in (1, 3):
            with pytest.raises(BadImage, match=r"more than 178,956,970"):
                decode(data, channels)


def test_large__below_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow only warns of these, and a warning made an error would end the run."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    for kind in ("PNG", "JPEG"):
        data = _encoded(Image.fromarray(COLOUR), kind)  # 600 pixels
        assert decode(data).shape == (20, 30, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 299)
    for kind in ("PNG", "JPEG"):
        with pytest.raises(BadImage, match="more than 598"):
            decode(_encoded(Image.fromarray(COLOUR), kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP"])
def test_damage__never_ends_in_another_error(kind: str) -> None:
    data = _encoded(Image.fromarray(COLOUR), kind)
    with pytest.raises(BadImage):
        decode(data[: len(data) // 2])
    refused = 0
    for trial in range(200):
        bad = bytearray(data)
        for place in np.random.default_rng(trial).integers(0, min(200, len(bad)), 3):
            bad[place] ^= 1 + trial % 255
        try:
            assert decode(bytes(bad)).shape[2] == 3
        except BadImage:
            refused += 1
    assert refused > 0


def test_damage__a_signal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while an image is opened must not end as an image that cannot be used."""

    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Image, "open", stopped)
    with pytest.raises(Interrupted), raised_by_sigterm(Interrupted("stopped")):
        decode(_encoded(Image.fromarray(COLOUR), "PNG"))


def test_postscript__is_not_run() -> None:
    with pytest.raises(BadImage, match="no image of a known kind"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


def test_folder__every_format_that_the_docs_name(tmp_path: Path) -> None:
    kinds = ["jpg", "jfif", "png", "webp", "avif", "tiff", "gif", "bmp", "ppm", "jp2"]
    for kind in kinds:
        Image.fromarray(COLOUR).save(tmp_path / f"a.{kind}")
    source = FolderSource(tmp_path)
    shapes = [decode(source.read(index)).shape for index in range(len(source))]
    assert shapes == [COLOUR.shape] * len(kinds)
