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
from flexpredict.report.analysis.masks import coverage
from flexpredict.report.demo_page import write_demo_page
from flexpredict.report.figures.curves import Band, curve, curves
from flexpredict.report.figures.masks import mask_coverage, mask_examples
from flexpredict.report.figures.style import line_style, to_png
from flexpredict.report.page import number, table
from flexpredict.report.runs import read_run

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
    for exact, shown in ((13.12, "13.1"), (20.0, "20.0"), (25.46, "25.5"), (44.44, "44.4")):
        assert f'<td><data value="{exact}">{shown}</data></td>' in page
    assert "<script" not in page
    assert "a&lt;script&gt;alert(1)&lt;" in page  # the name of the run
    assert '<th scope="row">StoP</th>' in page
    assert not re.search(r"""(src|href)=["']?http""", page)


def test_metrics__are_the_runs_own(run: Path, tmp_path: Path) -> None:
    raw = (run / "metrics.jsonl").read_text()
    assert read_run(run).metrics == [json.loads(line) for line in raw.splitlines()]
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.yaml").write_text((run / "config.yaml").read_text())
    (cut / "metrics.jsonl").write_text(raw[:-20])  # a write that did not end
    assert read_run(cut).metrics == read_run(run).metrics[:-1]


def test_curves__draw_every_run_and_metric(run: Path) -> None:
    lines = read_run(run).metrics
    figure = curves({"one": lines}, {"loss": "loss", "norm_A": "A"})
    drawn = figure.axes[0].lines[0]
    np.testing.assert_allclose(drawn.get_ydata(), [line["loss"] for line in lines])
    assert len(figure.axes) == 2


def test_curves__more_runs_than_colours_are_told_apart() -> None:
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    figure = curves({f"run {number}": lines for number in range(20)}, {"loss": "loss"})
    assert len(figure.axes[0].lines) == 20
    assert len({str(line_style(number)) for number in range(20)}) == 20


@pytest.mark.parametrize("masking", ["even", "paper", "random"])
def test_masks__are_drawn_for_every_sampler(masking: str, pictures: np.ndarray) -> None:
    settings = fp.Settings(model="vit_nano", patch_size=4, image_size=32, masking=masking)  # type: ignore[arg-type]
    sampler = build_sampler(settings, (8, 8))
    assert to_png(mask_examples(sampler, pictures[:3], 4)).startswith(b"\x89PNG")
    shares = coverage(sampler)
    assert all((share >= 0).all() and (share <= 1).all() for share in shares)
    drawn = mask_coverage({masking: shares}).axes[:2]
    for panel, share in zip(drawn, shares, strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), share)


def test_curves__means_lie_where_their_values_do() -> None:
    """Gauges, which are few, are drawn as logged; what is logged often is smoothed in place."""
    lines = [{"step": step, "loss": float(step)} for step in range(1, 601)]
    for line in lines[::30]:
        line["rankme_target"] = float(line["step"]) ** 2
    known = lines[::30]
    band = Band([1, 600], [0, 0], [1, 1], [2, 2])
    (panel,) = curve({"a": lines}, "rankme_target", smooth=True, styles={}, band=band).axes
    drawn = panel.lines[-1].get_xydata()
    np.testing.assert_array_equal(drawn, [[x["step"], x["rankme_target"]] for x in known])
    (panel,) = curve({"a": lines}, "loss", smooth=True, styles={}).axes
    logged, strong = (line.get_xydata() for line in panel.lines)
    assert len(logged) == 600
    assert len(strong) == 591
    np.testing.assert_allclose(strong[:, 0], strong[:, 1])  # of a straight line: the line itself


def test_number__nearly_one_is_not_one() -> None:
    assert number(0.99995) == '<data value="0.99995">0.99995</data>'
    assert number(1.0) == '<data value="1.0">1</data>'
    assert number(0.123456) == '<data value="0.123456">0.1235</data>'


def test_table__names_break_between_their_words_alone() -> None:
    shown = table(["", "a_b"], {"gradient_norm": ["1"], "<i>": ["2"]}, name="t")
    assert "gradient_<wbr>norm" in shown
    assert "&lt;i&gt;" in shown


@pytest.mark.parametrize("far", [1e6, 2.0])
def test_curve__one_that_runs_away_hides_no_other(far: float) -> None:
    lines = {
        "well": [{"step": step, "x": 1.0} for step in (1, 2, 3)],
        "off": [{"step": 1, "x": 1.0}, {"step": 3, "x": far}],
    }
    band = Band([1, 3], [0.5, 0.5], [1, 1], [1.5, 1.5])
    panel = curve(lines, "x", styles={}, band=band).axes[0]
    assert panel.get_yscale() == ("symlog" if far > 100 else "linear")
    low, high = (float(panel.transAxes.inverted().transform(
        panel.transData.transform((1, at)))[1]) for at in (0.5, 1.5))  # fmt: skip
    assert high - low > 0.05  # of the panel's height is the band's
