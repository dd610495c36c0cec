"""The page says what the run wrote, and text stays text."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import flexpredict as fp
from flexpredict.build import build_sampler
from flexpredict.config import read_settings
from flexpredict.data.sources import MemorySource
from flexpredict.report import figures
from flexpredict.report.page import read_metrics, write_demo_page

ROWS = {"majority": {"count": 13.12, "dist": 20.0}, "stop": {"count": 25.46, "dist": 44.44}}


@pytest.fixture(scope="module")
def run(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "a<script>alert(1)<"
    fp.pretrain(
        pictures, run, model="vit_nano", patch_size=4, image_size=32, batch_size=16, steps=4,
        log_every=1, workers=0,
    )  # fmt: skip
    return run


def test_page__numbers_and_names(run: Path, pictures: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_demo_page(path, [run], ROWS, MemorySource(pictures), read_settings(run / "config.yaml"))
    page = path.read_text()
    for number in ("13.1", "20.0", "25.5", "44.4"):
        assert f"<td>{number}</td>" in page
    assert "<script" not in page
    assert "a&lt;script&gt;alert(1)&lt;" in page  # the name of the run
    assert "<td>StoP</td>" in page
    assert not re.search(r"""(src|href)=["']?http""", page)


def test_metrics__are_the_runs_own(run: Path) -> None:
    lines = read_metrics(run)
    raw = (run / "metrics.jsonl").read_text().splitlines()
    assert lines == [json.loads(line) for line in raw]


def test_curves__draw_every_run_and_metric(run: Path) -> None:
    figure = figures.curves({"one": read_metrics(run)}, {"loss": "loss", "norm_A": "A"})
    drawn = figure.axes[0].lines[0]
    np.testing.assert_allclose(drawn.get_ydata(), [line["loss"] for line in read_metrics(run)])
    assert len(figure.axes) == 2


@pytest.mark.parametrize("masking", ["even", "paper", "random"])
def test_masks__are_drawn_for_every_sampler(masking: str, pictures: np.ndarray) -> None:
    settings = fp.Settings(model="vit_nano", patch_size=4, image_size=32, masking=masking)  # type: ignore[arg-type]
    sampler = build_sampler(settings, (8, 8))
    assert figures.to_png(figures.mask_examples(sampler, pictures[:3], 4)).startswith(b"\x89PNG")
    coverage = figures.mask_coverage(sampler)
    shares = [np.asarray(panel.images[0].get_array()) for panel in coverage.axes[:2]]
    assert all((share >= 0).all() and (share <= 1 + 1e-9).all() for share in shares)
