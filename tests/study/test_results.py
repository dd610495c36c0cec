"""Tables of the results pages are those of the committed lines."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from flexpredict.config import recipe_text
from flexpredict.study.plan import read_study, study_names, trials
from flexpredict.study.run import read_results
from flexpredict.study.tables import estimate, values_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import results

    return results


def test_pages__are_filled_from_the_lines(results: Any) -> None:
    for page in results.PAGES:
        text = page.read_text("utf-8")
        assert results.filled(text) == text, f"{page.name}: run python benchmarks/results.py"
        assert len(results.TABLE.findall(text)) == text.count("<!-- end -->") > 0


def test_pages__show_all_lines_that_are_kept(results: Any) -> None:
    """Runs that only repeat, or stand for something, are named in words."""
    pages = "".join(page.read_text("utf-8") for page in results.PAGES)
    shown = {name for found in results.TABLE.findall(pages) for name in found[0].split("+")}
    kept = {path.parent.name for path in (ROOT / "results").glob("*/results.jsonl")}
    named = {name for name in kept - shown if f"`results/{name}`" in pages}
    assert kept - shown - named <= {"s96-slow-average"}  # of docs/health.md


def test_pages__every_table_names_lines_that_are_there(results: Any) -> None:
    with pytest.raises(ValueError, match="no lines in results/nothing"):
        results.filled("<!-- nothing - -->\n<!-- end -->")
    with pytest.raises(ValueError, match="no column 'luck'"):
        results.filled("<!-- figure4-demo sincos: luck -->\n<!-- end -->")


@pytest.mark.parametrize("name", [n for n in study_names() if (ROOT / "results" / n).exists()])
def test_lines__are_of_the_studies_that_ship(name: str, results: Any) -> None:
    """Settings by their digest: who changes a recipe or a study has to run it again.

    Studies whose table is on the page are complete; others may have been begun.
    """
    path = ROOT / "results" / name / "results.jsonl"
    study = read_study(name)
    planned = {(t.variant, t.seed): t.settings.digest() for t in trials(study, study.data or "")}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(line["variant"], line["seed"]): line["settings"] for line in lines}
    assert found.items() <= planned.items()
    if any(f"<!-- {name} " in page.read_text("utf-8") for page in results.PAGES):
        assert len(found) == len(planned)
    assert {line["asked"] for line in lines} == {study.asked}


@pytest.mark.parametrize("width", [80, 240])
def test_study__tables_fit_the_terminal(
    width: int, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of committed lines, so that nothing is trained."""
    shutil.copy(ROOT / "results" / "masks-demo" / "results.jsonl", tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = command("study", "masks-demo", "--out", tmp_path)
    assert code == 0, err
    assert "-0.275 [-0.345, -0.205]" in out
    assert "norm_mask_token" in out
    assert "…" not in out
    rows, _, path = out.partition("side by side: ")
    assert max(map(len, rows.splitlines())) <= width
    assert bool(path) == (width == 80)


@pytest.mark.parametrize(
    ("recipe", "folder", "variant", "column"),
    [
        ("small/stop-vit-t8-64", "seeds", "stop", "held out, kNN"),
        ("small/stop-vit-t4-64", "seeds-t4", "stop", "held out, kNN"),
        ("small/stop-vit-s8-96", "seeds-s96", "stop", "held out, kNN"),
        *(("small/stop-vit-s8-64", "headline", "stop", name) for name in ("1 %", "100 %", "kNN")),
    ],
)
def test_recipes__expect_what_was_found(
    recipe: str, folder: str, variant: str, column: str
) -> None:
    lines = read_results(ROOT / "results" / folder)
    found = estimate(list(values_of(lines, variant, column).values()))
    assert f"{found.mean:.1f} ± {found.std:.1f} %" in recipe_text(recipe)


def test_readme__has_the_gains_of_five_seeds() -> None:
    runs = json.loads((ROOT / "results" / "demo-seeds.json").read_text()).values()
    said = []
    for name, key in {"deterministic": "deterministic", "StoP": "stop"}.items():
        gains = [
            sum(run[key][task] - run["untrained"][task] for task in ("count", "dist", "class")) / 3
            for run in runs
        ]
        each = ", ".join(f"{gain:.1f}" for gain in gains)
        said.append(f"{name} {each} (mean {sum(gains) / len(gains):.1f})")
    assert f"{', '.join(said)}." in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ("demo", ("majority", "pixels", "untrained", "deterministic", "stop")),
        ("demo-30", ("deterministic", "stop")),
    ],
)
def test_readme__has_the_demo_as_it_was_found(kept: str, shown: tuple[str, ...]) -> None:
    """`make demo` writes demo-run/results.json; ours are kept."""
    found = json.loads((ROOT / "results" / f"{kept}.json").read_text())
    rows = {
        "majority": "majority class", "pixels": "pixel block means",
        "untrained": "untrained encoder", "deterministic": "deterministic positions",
        "stop": "StoP",
    }  # fmt: skip
    text = (ROOT / "README.md").read_text()
    for key in shown:
        numbers = [found[key][task] for task in ("count", "dist", "class")]
        cells = " | ".join(f"{number:.1f}" for number in [*numbers, sum(numbers) / 3])
        assert f"| {rows[key]} | {cells} |" in text
