import numpy as np
import pytest
from PIL import Image

from flexpredict.data.randaugment import OPERATION_DRAWS, OPERATIONS, RandAugment
from flexpredict.data.random import uniforms

MEAN = (0.485, 0.456, 0.406)
FILL = (124, 116, 104)


def _picture(seed: int = 0) -> np.ndarray:
    """Smooth colours of middle contrast with an edge, (40, 48, 3)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(40, 210, (5, 6, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(small).resize((48, 40), Image.Resampling.BILINEAR)).copy()
    image[8:20, 10:22] = (200, 60, 90)
    return image


def _draws(*key: int) -> np.ndarray:
    return uniforms(*key, count=RandAugment().draws)


def test_policy__is_read_from_its_name() -> None:
    assert RandAugment.parse("rand-m9-mstd0.5-inc1") == RandAugment(2, 9.0, 0.5, 0.5)
    other = RandAugment.parse("rand-m7-n3-p0.7-mstd1-inc1")
    assert other == RandAugment(3, 7.0, 1.0, 0.7)
    assert other.draws == 3 * OPERATION_DRAWS


@pytest.mark.parametrize(
    "text",
    ["auto-m9-inc1", "rand-m9-mstd0.5", "rand-m9-inc0", "rand-m9-q3-inc1", "rand-m11-inc1", "rand"],
)
def test_policy__what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood: expected the like of rand-m9"):
        RandAugment.parse(text)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation__changes_something_and_keeps_the_size(name: str, sign: int) -> None:
    picture = Image.fromarray(_picture())
    out = OPERATIONS[name](picture, 0.9, sign, FILL)
    assert out.size == picture.size
    assert out.mode == picture.mode
    assert not np.array_equal(np.asarray(out), np.asarray(picture))
    assert np.array_equal(np.asarray(picture), _picture())


def test_operations__grow_with_the_magnitude() -> None:
    """inc1: a larger magnitude is a stronger distortion, and none at magnitude 0."""
    picture = Image.fromarray(_picture())
    alike = {"auto-contrast", "equalize", "invert"}  # they have no strength
    for name in OPERATIONS.keys() - alike:
        none, weak, strong = (
            np.abs(
                np.asarray(OPERATIONS[name](picture, strength, 1, FILL)).astype(float) - _picture()
            ).mean()
            for strength in (0.0, 0.3, 0.9)
        )
        # Posterising keeps four bits at magnitude 0.
        assert none == 0 or (name == "posterize" and none < 16), name
        assert weak < strong, name


def test_operations__go_the_stated_way() -> None:
    white = Image.new("L", (20, 10), 200)
    moved = np.asarray(OPERATIONS["translate-x"](white, 1.0, 1, 7))
    assert (moved[:, :11] == 200).all()  # 0.45 of 20 pixels come in from the right
    assert (moved[:, 11:] == 7).all()
    levels = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    one_bit = np.asarray(OPERATIONS["posterize"](levels, 0.9, 1, 0))
    assert sorted(set(one_bit.flatten().tolist())) == [0, 128]
    brighter = np.asarray(OPERATIONS["solarize-add"](levels, 0.9, 1, 0)).flatten()
    assert brighter[:128].tolist() == list(range(99, 227))
    assert brighter[128:].tolist() == list(range(128, 256))


def test_randaugment__is_a_function_of_the_key() -> None:
    policy, picture = RandAugment(), _picture()
    first = policy(picture, _draws(1, 2, 3), MEAN)
    assert np.array_equal(first, policy(picture, _draws(1, 2, 3), MEAN))
    views = {policy(picture, _draws(1, 2, key), MEAN).tobytes() for key in range(50)}
    assert len(views) > 25  # a quarter of the images stay as they are


def test_randaugment__keeps_shape_and_dtype() -> None:
    policy = RandAugment(operations=2, probability=1.0)
    for picture, mean in ((_picture(), MEAN), (_picture()[..., :1], (0.5,))):
        for key in range(100):
            out = policy(picture, uniforms(key, count=policy.draws), mean)
            assert out.shape == picture.shape
            assert out.dtype == np.uint8


def test_randaugment__other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or 3 channels, not 4"):
        RandAugment()(np.zeros((8, 8, 4), np.uint8), _draws(0), (0.5,) * 4)


def test_randaugment__half_of_the_operations_are_made() -> None:
    """Both are left out for a quarter of the images: within 5 standard errors."""
    policy, picture, count = RandAugment(), _picture(), 2000
    draws = uniforms(5, np.arange(count), count=policy.draws)
    same = sum(np.array_equal(policy(picture, draw, MEAN), picture) for draw in draws)
    assert abs(same / count - 0.25) < 5 * (0.25 * 0.75 / count) ** 0.5


def test_randaugment__the_magnitude_is_normal_around_nine() -> None:
    """Seen through solarize-add, which adds int(11 · magnitude) to black."""
    policy = RandAugment(operations=1, probability=1.0)
    draws = uniforms(6, np.arange(4000), count=policy.draws)
    draws[:, 0] = (list(OPERATIONS).index("solarize-add") + 0.5) / len(OPERATIONS)
    black = np.zeros((1, 1, 3), np.uint8)
    added = np.array([policy(black, draw, MEAN)[0, 0, 0] for draw in draws]) / 11
    below_ten = added[added < 10]
    assert added.max() == 10
    assert abs((added >= 10).mean() - 0.0228) < 5 * (0.0228 / 4000) ** 0.5
    assert abs(np.median(below_ten) - 9) < 0.1  # int() takes 0.5 / 11 off
    assert 0.4 < np.std(below_ten) < 0.55
