"""What the package asks for."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _plain(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version)


def test_oldest__are_the_versions_that_the_package_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = dict(one.split(">=") for one in project["dependencies"])
    del asked["torch"]  # of which one build is at hand here
    text = (ROOT / "constraints-oldest.txt").read_text()
    pinned = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    assert {name: _plain(version) for name, version in pinned.items()} == {
        name: _plain(version) for name, version in asked.items()
    }
