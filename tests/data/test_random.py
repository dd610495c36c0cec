import numpy as np
import pytest

from flexpredict.data.random import Stream, permute, seed_from, uniforms


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 4097])
def test_permute__is_a_permutation(size: int) -> None:
    order = permute(np.arange(size), size, 0, 1)
    assert sorted(order.tolist()) == list(range(size))


def test_permute__place_by_place_equals_all_at_once() -> None:
    whole = permute(np.arange(1000), 1000, 5, 2)
    parts = [permute(np.arange(s, s + 10), 1000, 5, 2) for s in range(0, 1000, 10)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_permute__is_uniform_and_differs_between_epochs() -> None:
    """Where sample 0 of 20 lands, over 4,000 keys: χ² with 19 degrees of freedom."""
    places = np.array([permute(np.arange(20), 20, 0, epoch)[0] for epoch in range(4000)])
    counts = np.bincount(places, minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < 66  # the 1 − 5e-7 quantile
    pairs = [permute(np.arange(1000), 1000, 0, epoch) for epoch in (0, 1)]
    assert (pairs[0] == pairs[1]).sum() < 12


def test_uniforms__are_uniform_and_a_function_of_the_key() -> None:
    draws = uniforms(3, np.arange(100_000), count=3)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.abs(draws.mean(0) - 0.5).max() < 5 * np.sqrt(1 / 12 / 100_000)
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 5 / np.sqrt(100_000)
    assert np.array_equal(uniforms(3, np.array([77]), count=3)[0], draws[77])
    assert not np.array_equal(uniforms(4, np.array([77]), count=3)[0], draws[77])


def test_seeds__differ_by_any_part_of_the_key() -> None:
    seeds = {
        seed_from(seed, stream, epoch, chunk)
        for seed in range(5)
        for stream in Stream
        for epoch in range(5)
        for chunk in range(20)
    }
    assert len(seeds) == 5 * len(Stream) * 5 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)
