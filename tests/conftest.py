"""Shared by all tests: one thread, so that two processes of pytest-xdist do not fight for cores."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

# Our kernels are then run by Triton's interpreter, which asks for no GPU. They read this at import.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

import processes
import sweep

from flexpredict import cli

FIXTURES = Path(__file__).parent / "fixtures"

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rendered scenes go to a folder of the test session, not to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXPREDICT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def vectors() -> dict[str, dict[str, np.ndarray]]:
    """Every fixture file as a dictionary of arrays."""
    return {path.stem: dict(np.load(path)) for path in FIXTURES.glob("*.npz")}


@pytest.fixture(scope="session")
def pictures() -> np.ndarray:
    """96 small pictures with structure: coloured discs on a gradient, (96, 32, 32, 3) uint8."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:32, :32]
    images = np.empty((96, 32, 32, 3), dtype=np.uint8)
    for image in images:
        image[:] = np.linspace(rng.integers(200), rng.integers(200), 32)[:, None, None]
        for _ in range(3):
            y, x, radius = rng.integers(32), rng.integers(32), rng.integers(4, 9)
            image[(row - y) ** 2 + (column - x) ** 2 < radius**2] = rng.integers(0, 256, 3)
    return images


@pytest.fixture(scope="session")
def photos(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures as PNG files in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    for index, picture in enumerate(pictures):
        path = folder / ("left" if index % 2 else "right") / f"{index:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path)
    return folder


@pytest.fixture(scope="session")
def images(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of them under names that must stay text."""
    folder = tmp_path_factory.mktemp("images")
    for number, path in enumerate(sorted(photos.rglob("*.png"))[:24]):
        shutil.copy(path, folder / f"{number:02d}<script>alert(2)<.png")
    return folder


@pytest.fixture(scope="session")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A small sweep."""
    return sweep.make(tmp_path_factory.mktemp("runs"), images)


@pytest.fixture
def start() -> Iterator[processes.Start]:
    """Starts Python with some words in a process that does not outlive the test."""
    with processes.starting() as begin:
        yield begin


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    """Runs a command line: exit code, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["flexpredict", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
