"""The page of runs: its numbers are theirs, and it behaves in a real browser."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import browser
from conftest import Command
from sweep import NASTY, SCORES

from flexpredict.config import settings_from
from flexpredict.report.figures.curves import Band, curve, profile
from flexpredict.report.figures.style import line_style
from flexpredict.report.gallery import Gallery, draw_figures
from flexpredict.report.images import find_images
from flexpredict.report.judged import Healthy, healthy_runs, verdict_of
from flexpredict.report.run_page import check_page, write_run_page
from flexpredict.report.runs import read_runs

NOTHING = Gallery({}, {})
WIDTHS = (1440, 768, 390)


class Tables(HTMLParser):
    """Every table of a page: id -> title of a row -> its cells, exact numbers where it has them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, list[str]]] = {}
        self._cells: list[str] = []
        self._exact: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "table":
            self._rows = self.found.setdefault(given["id"] or "", {})
        elif tag == "tr":
            self._cells = []
        elif tag in ("td", "th"):
            self._cells.append("")
            self._exact = None
        elif tag == "data" and self._exact is None:
            self._exact = given["value"]

    def handle_data(self, data: str) -> None:
        if self._cells:
            self._cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._exact is not None:
            self._cells[-1] = self._exact
        elif tag == "tr":
            self._rows[self._cells[0]] = self._cells[1:]
            self._cells = []


def _tables(path: Path) -> dict[str, dict[str, list[str]]]:
    return Tables(path.read_text()).found


def test_numbers__are_those_of_metrics_and_evaluations(runs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_run_page(path, read_runs(runs), NOTHING)
    tables = _tables(path)
    last = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in runs]
    scalars = {key for key, value in last[0].items() if not isinstance(value, list)}
    for key in scalars - {"noise_over_signal", "noise_over_position"}:  # the first has no noise
        assert [float(cell) for cell in tables["gauges"][key]] == [line[key] for line in last]
    assert set(tables["gauges"]) - {""} == scalars | set(last[1]) - {
        key for key, value in last[1].items() if isinstance(value, list)
    }
    assert 'alt="loss_by_row at the end"' in path.read_text()
    (scores,) = (row for label, row in tables["evaluations"].items() if label)
    assert [float(score) for score in scores] == list(SCORES.values())
    assert tables["evaluations"][""] == list(SCORES)  # the head: names of runs
    assert "(+3.5)" in path.read_text()  # 57.8125 − 54.3, beside the first run
    assert tables["differences"] == {
        "": list(SCORES),
        "≠ positions": ["sincos", "stop", "stop"],
        "≠ seed": ["0", "0", "1"],
    }
    assert tables["settings"]["patch_size"] == ["4"] * 3


def test_evaluations__what_was_found_beside_the_score_has_a_row(
    runs: list[Path], tmp_path: Path
) -> None:
    found = {
        "knn": {"accuracy": 20.5, "ridge": 30.25},
        "boxes": {"iou": 50.5, "iou_over_50": 40.0, "mean_box_iou": 45.125},
        "shifts": {"accuracy": 31.0, "accuracy_4": 29.5, "likeness_4": 0.9},
    }
    copies = [tmp_path / run.name for run in runs[:2]]
    for copy, run in zip(copies, runs, strict=False):
        shutil.copytree(run, copy)
        shutil.rmtree(copy / "evaluations")
        (copy / "evaluations").mkdir()
        like = json.loads(next((run / "evaluations").glob("*.json")).read_text())
        for method, result in found.items():
            one = like | {"task": "photos", "method": method, "result": result}
            (copy / "evaluations" / f"{method}.json").write_text(json.dumps(one))
    (copies[0] / "evaluations" / "boxes.json").unlink()
    write_run_page(tmp_path / "page.html", read_runs(copies), NOTHING)
    rows = {key: row for key, row in _tables(tmp_path / "page.html")["evaluations"].items() if key}
    assert {key.partition(", ")[2]: row[1] for key, row in rows.items()} == {
        "boxes": "50.5", "boxes: the mean box": "45.125", "knn": "20.5", "knn: by ridge": "30.25",
        "shifts": "31.0", "shifts: moved by 4 px": "29.5",
    }  # fmt: skip
    assert [row[0] for key, row in rows.items() if "boxes" in key] == ["–", "–"]


def test_evaluations__of_earlier_weights_are_counted(runs: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / runs[0].name
    shutil.copytree(runs[0], copy)
    one = next((copy / "evaluations").glob("*.json"))
    (copy / "evaluations" / "earlier").mkdir()
    one.rename(copy / "evaluations" / "earlier" / one.name)
    write_run_page(tmp_path / "page.html", read_runs([copy]), NOTHING)
    page = (tmp_path / "page.html").read_text()
    assert "Nothing was evaluated yet, of these weights" in page
    assert "1 of earlier weights are in evaluations/earlier." in page


def test_gauges__others_than_ours_appear_with_their_band(runs: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "gauged"
    shutil.copytree(runs[0], copy)
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["rankme"] = 10.5 + line["step"]
    lines[-1]["gradient_norm"] = None  # as an overflow in float16 is logged
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    healthy = Healthy({"rankme": Band([1, 4], [9, 9], [11, 12], [14, 15])}, "two runs <of ours>")
    verdicts = {"gauged": "Healthy <so far>."}
    path = tmp_path / "page.html"
    write_run_page(path, read_runs([copy]), NOTHING, healthy=healthy, verdicts=verdicts)
    page, tables = path.read_text(), _tables(path)
    assert tables["gauges"]["rankme"] == ["14.5"]
    assert float(tables["gauges"]["gradient_norm"][0]) == lines[-2]["gradient_norm"]
    assert 'alt="rankme over steps"' in page
    assert "#about-health" in page
    assert "Healthy &lt;so far&gt;." in page
    assert "of their steps: two runs &lt;of ours&gt;." in page
    write_run_page(path, read_runs([copy]), NOTHING)
    page = path.read_text()
    assert "#about-health" not in page
    assert "healthy" not in page


def test_band__is_drawn_behind_the_curve() -> None:
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}, {"step": 3, "loss": 0.5}]
    band = Band([0, 3], [0.2, 0.1], [0.6, 0.5], [1.1, 0.9])
    figure = curve({"run": lines}, "loss", styles={"run": line_style(0)}, band=band)
    (shade,), (middle, drawn) = figure.axes[0].collections, figure.axes[0].lines
    assert {tuple(point) for point in shade.get_paths()[0].vertices} >= {(0, 0.2), (3, 0.9)}
    assert middle.get_ydata().tolist() == [0.6, 0.5]  # type: ignore[union-attr]
    assert drawn.get_xdata().tolist() == [1, 3]  # type: ignore[union-attr]


def test_profile__is_the_last_list_with_gaps_where_there_is_nothing() -> None:
    lines = [{"step": 1, "by_row": [5, 6, 7]}, {"step": 2, "by_row": [1, None, 3]}, {"step": 3}]
    (drawn,) = profile({"run": lines}, "by_row", styles={}).axes[0].lines
    assert drawn.get_xdata().tolist() == [1, 2, 3]  # type: ignore[union-attr]
    np.testing.assert_array_equal(drawn.get_ydata(), [1, np.nan, 3])


def test_judged__what_the_doctor_says_and_what_healthy_runs_showed(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    run = tmp_path / "begun"
    settings = settings_from({"seed": 0}, recipe="demo")
    run.mkdir()
    (run / "config.yaml").write_text(settings.to_yaml())
    shutil.copy(runs[1] / "metrics.jsonl", run / "metrics.jsonl")
    (opened,) = read_runs([run])
    healthy = healthy_runs([opened])
    assert healthy is not None
    bands = healthy.bands
    assert healthy.words.endswith("runs of 3,000 steps (demo)")
    both = healthy_runs(read_runs([runs[0], run]))
    assert both == healthy._replace(words=healthy.words + ", like begun alone")
    short = tmp_path / "short"
    shutil.copytree(run, short)
    (short / "config.yaml").write_text(settings.model_copy(update={"steps": 2500}).to_yaml())
    assert healthy_runs(read_runs([run, short])) == both  # a band is as long as one of them
    assert bands["rankme_target"].steps[-1] == settings.steps
    assert all(low <= high for low, high in zip(*bands["rankme_target"][1::2], strict=True))
    said = verdict_of(opened)
    assert said.startswith("unknown: nothing is seen to be wrong")
    code, _, errors = command("report", run, "--device", "cpu")
    assert code == 0, errors
    page = (run / "report.html").read_text()
    assert said.split(".")[0] in page
    assert "what healthy runs showed" in page
    assert "runs of 3,000 steps (demo)." in page


def test_unfinished__is_reported_as_such(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(runs[0], begun)
    (begun / "encoder.safetensors").unlink()
    shutil.rmtree(begun / "checkpoints")
    lines = (begun / "metrics.jsonl").read_text().splitlines()
    (begun / "metrics.jsonl").write_text("\n".join(lines[:2]))
    code, text, _ = command("report", begun, "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(text) == {"report": str(begun / "report.html"), "runs": [str(begun)]}
    check_page(begun / "report.html")  # one of ours may be written again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.access", lambda path, _: path != begun)  # root may write anywhere
        with pytest.raises(ValueError, match="cannot be written: name another file by --out"):
            check_page(begun / "report.html")
    tables = _tables(begun / "report.html")
    assert tables["runs"]["state"] == ["unfinished: step 2 of 4"]
    assert "has no checkpoint: they are made every" in (begun / "report.html").read_text()


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    opened, path = read_runs(runs[:2]), tmp_path_factory.mktemp("report") / "report.html"
    images = find_images(opened, None)
    write_run_page(path, opened, draw_figures(opened, images, ["fig5", "fig6", "neighbours"]))
    return path


def test_browser__no_errors_no_requests_and_text_stays_text(
    report: Path, runs: list[Path], tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as page:
        for width in WIDTHS:
            page.open(report, width=width)
            wide = "document.documentElement.scrollWidth"
            assert page.evaluate(wide) == width  # nothing sticks out
        text = page.evaluate("document.body.textContent")
        assert NASTY in text
        assert "<script>alert(2)<.png" in text
        assert page.evaluate("document.scripts.length") == 0
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
        assert len(set(ids)) == len(ids)
        links = page.evaluate("[...document.links].map(link => link.hash.slice(1))")
        assert links
        assert set(links) <= set(ids)
        broken = "[...document.images].filter(image => !image.naturalWidth).length"
        assert page.evaluate(broken) == 0
        logged = {key for run in read_runs(runs[:2]) for line in run.metrics for key in line}
        assert page.evaluate("document.images.length") == len(logged - {"step", "epoch"}) + 3
        page.pdf(tmp_path / "page.pdf")
    assert page.errors == []
    outside = [url for url in page.requests if not url.startswith("data:")]
    assert outside == [report.resolve().as_uri()] * len(WIDTHS)
    assert (tmp_path / "page.pdf").stat().st_size > 50_000


def test_browser__would_see_errors_and_requests(tmp_path: Path) -> None:
    """The test above can fail."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<script>console.error('oh')</script><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width:3000px'>wide</div>"
    )
    with browser(tmp_path / "profile") as page:
        page.open(path, width=390)
        assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert "http://127.0.0.1:9/x.png" in page.requests
    assert any("oh" in error for error in page.errors)


def test_browser__missing_fails_where_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from browser import find

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("FLEXPREDICT_CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find()
    monkeypatch.setenv("FLEXPREDICT_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no chromium"):
        find()
