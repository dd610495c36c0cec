"""Shared by all tests: one thread, so that two processes of pytest-xdist do not fight for cores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
