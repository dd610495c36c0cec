"""Benchmarks need hours or a GPU, but what they import is there."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_benchmark__imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for other in FOLDER.glob("*.py"):
        monkeypatch.delitem(sys.modules, other.stem, raising=False)
    assert importlib.import_module(name).__doc__
