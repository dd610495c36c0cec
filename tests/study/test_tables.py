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


@pytest.mark.parametrize("count", [2, 5, 12, 31])
def test_interval__is_students(count: int) -> None:
    values = np.random.default_rng(0).normal(size=count)
    found = estimate(values.tolist())
    wanted = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert found.half is not None
    np.testing.assert_allclose(
        [found.mean - found.half, found.mean + found.half], wanted, rtol=1e-3
    )


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
