import numpy as np
import pytest
from scipy import stats

from flexpredict.study.tables import differences, estimate, markdown, summary

LINES = [
    {"variant": variant, "seed": seed, "found": {"kNN": value, "norm": None}}
    for variant, values in {"a": [10.0, 12.0, 11.0], "b": [11.0, 12.5, 13.0]}.items()
    for seed, value in enumerate(values)
]


def test_differences__are_within_pairs_and_only_of_seeds_that_both_have() -> None:
    assert differences(LINES, "b", "a", "kNN") == [1.0, 0.5, 2.0]
    assert differences(LINES[:-1], "b", "a", "kNN") == [1.0, 0.5]
    assert differences(LINES, "b", "a", "norm") == []


@pytest.mark.parametrize("count", [2, 5, 12, 31, 40])
def test_interval__is_students(count: int) -> None:
    values = np.random.default_rng(0).normal(size=count)
    found = estimate(values.tolist())
    wanted = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert found.half is not None
    exact = (wanted[1] - wanted[0]) / 2
    assert exact * 0.999 < found.half < exact * (1.001 if count <= 31 else 1.05)
    assert found.mean == pytest.approx((wanted[0] + wanted[1]) / 2)


def test_summary__has_means_and_paired_differences() -> None:
    found = summary(LINES, "a")
    assert found["a"]["kNN"] == {"mean": 11.0, "std": 1.0, "seeds": 3}
    assert found["b"]["kNN"]["difference"] == pytest.approx(7 / 6)
    low, high = found["b"]["kNN"]["interval"]
    assert low < 0 < high
    assert "norm" not in found["a"]
    text = markdown(LINES, "a")
    assert "| a | 3 | 11 ± 1 | – |" in text
    assert "| b | 3 | +1.17 [" in text


def test_summary__one_seed_has_no_deviation_and_no_interval() -> None:
    one = [line for line in LINES if line["seed"] == 0]
    assert summary(one, "a")["b"]["kNN"] == {
        "mean": 11.0, "std": None, "seeds": 1, "difference": 1.0, "pairs": 1, "interval": None
    }  # fmt: skip
    assert "| b | 1 | +1 | – |" in markdown(one, "a")


def test_table__a_cell_of_fewer_seeds_says_so() -> None:
    lines = [line | {"found": dict(line["found"])} for line in LINES]
    lines[0]["found"]["norm"] = lines[3]["found"]["norm"] = lines[4]["found"]["norm"] = 2.0
    text = markdown(lines, "a")
    assert "| a | 3 | 11 ± 1 | 2 (n = 1) |" in text
    assert "2 ± 0 (n = 2) |" in text
    assert text.count("+0 (n = 1) |") == 1


def test_table__of_nothing() -> None:
    assert markdown([line | {"found": {}} for line in LINES], "a") == "Nothing was measured.\n"


def test_summary__each_variant_has_a_baseline_of_its_own() -> None:
    more = [line | {"variant": f"{line['variant']} twice"} for line in LINES]
    more = [line | {"found": {"kNN": 2 * line["found"]["kNN"]}} for line in more]
    text = markdown(LINES + more, {"b": "a", "b twice": "a twice"})
    assert "| b − a | 3 | +1.17 [" in text
    assert "| b twice − a twice | 3 | +2.33 [" in text
    assert "| a twice − " not in text
    assert "difference" not in summary(LINES + more, {"b": "a"})["b twice"]["kNN"]
