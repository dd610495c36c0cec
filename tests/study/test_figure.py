from typing import Any

from flexpredict.report.analysis.sweep import Point
from flexpredict.study.figure import curves, figures


def _line(group: str, std: float, seed: int, value: float | None) -> dict[str, Any]:
    return {
        "variant": f"{group} noise_std={std:g}", "group": group, "swept": {"noise_std": std},
        "seed": seed, "found": {"kNN": value},
    }  # fmt: skip


LINES = [
    _line("sincos", 0, 0, 5.0), _line("stop", 0.5, 0, 7.0), _line("stop", 0.1, 0, 6.0),
    _line("stop", 0.5, 1, 9.0), _line("stop", 0.1, 1, None),
]  # fmt: skip


def test_curves__are_what_was_found_at_each_value() -> None:
    assert curves(LINES, "noise_std") == {
        "kNN": {
            "sincos": [Point(0, {"seed 0": 5.0})],
            "stop": [Point(0.1, {"seed 0": 6.0}), Point(0.5, {"seed 0": 7.0, "seed 1": 9.0})],
        }
    }


def test_figures__of_a_sweep_and_of_what_is_none() -> None:
    sweep = figures(LINES, "sincos noise_std=0")["sweep"]
    assert sweep.axes[0].get_xlabel() == "noise_std"
    (legend,) = sweep.legends
    assert {text.get_text() for text in legend.get_texts()} == {"sincos", "stop"}
    noisy = {"stop": 0.2, "sincos": None}  # which only some have
    more = [line | {"found": line["found"] | {"noise": noisy[line["group"]]}} for line in LINES]
    plain, partly = figures(more, "sincos noise_std=0")["sweep"].axes[:2]
    looks = {one.get_label(): one[0].get_color() for one in plain.containers}
    assert {one.get_label(): one[0].get_color() for one in partly.containers} == {
        "stop": looks["stop"]
    }
    still = [line | {"swept": {}} for line in LINES]
    words = [line | {"swept": {"noise_on": "both"}} for line in LINES]
    assert list(figures(still, None)) == list(figures(words, None)) == ["results"]
    assert figures([line | {"found": {}} for line in LINES], None) == {}
