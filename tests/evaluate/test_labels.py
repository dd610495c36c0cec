import hashlib
from pathlib import Path

import numpy as np
import pytest

from flexpredict.data.sources import MemorySource
from flexpredict.evaluate import labels
from flexpredict.evaluate.labels import Budget, held_out
from flexpredict.evaluate.tasks import FOLDER, _labelled

LABELS = np.repeat(np.arange(5), [10, 20, 30, 40, 3])


class _Named(MemorySource):
    def name(self, index: int) -> str:
        return f"class/{index:03d}.JPEG"


SOURCE = _Named(np.zeros((len(LABELS), 2, 2, 3), np.uint8))


def _counts(budget: str, seed: int = 0) -> list[int]:
    rows = Budget.parse(budget).rows(SOURCE, LABELS, seed)
    assert len(set(rows.tolist())) == len(rows)
    return np.bincount(LABELS[rows]).tolist()


def test_budget__shares_and_numbers_of_every_class() -> None:
    assert _counts("all") == [10, 20, 30, 40, 3]
    assert _counts("10%") == _counts("0.1") == [1, 2, 3, 4, 1]  # at least one of each class
    assert _counts("3/class") == [3] * 5
    with pytest.raises(ValueError, match="4/class: class 4 has only 3"):
        _counts("4/class")


def test_budget__a_seed_is_a_draw() -> None:
    budget = Budget.parse("30%")
    first = budget.rows(SOURCE, LABELS, 0)
    np.testing.assert_array_equal(first, budget.rows(SOURCE, LABELS, 0))
    assert (first != budget.rows(SOURCE, LABELS, 1)).any()
    drawn = np.zeros(len(LABELS))
    for seed in range(400):
        drawn[budget.rows(SOURCE, LABELS, seed)] += 1
    share = drawn[LABELS == 3] / 400  # every image has the same chance
    assert np.abs(share - 0.3).max() < 5 * (0.21 / 400) ** 0.5


@pytest.mark.parametrize("text", ["none", "0", "0%", "101%", "1.5", "0/class", "-1", "1..2"])
def test_budget__nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected all, a share"):
        Budget.parse(text)


def test_budget__lists_name_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.txt"
    path.write_text("000.JPEG\n102.JPEG\n")
    budget = Budget.parse(str(path))
    assert budget.rows(SOURCE, LABELS).tolist() == [0, 102]
    assert budget.text == "list some.txt"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(labels, "PUBLISHED_LIST", digest)
    assert Budget.parse(str(path)).text == "published 1% list"
    path.write_text("000.JPEG\n999.JPEG\n")
    with pytest.raises(ValueError, match=r"1 images that are not in the training set, such as 999"):
        Budget.parse(str(path)).rows(SOURCE, LABELS)


def test_held_out__a_share_of_every_class() -> None:
    kept, held = held_out(LABELS, 0.1, 0)
    assert sorted([*kept, *held]) == list(range(len(LABELS)))
    assert np.bincount(LABELS[held]).tolist() == [1, 2, 3, 4, 1]
    kept, held = held_out(np.array([0, 0, 1]), 0.5)
    assert kept.tolist()[-1] == 2  # the only one of its class is kept
    assert len(held) == 1


def test_budget__names_that_several_images_have_are_refused(tmp_path: Path) -> None:
    class _Twice(MemorySource):
        def name(self, index: int) -> str:
            return f"{'ab'[index // 2]}/{index % 2} x.png"

    source, path = _Twice(np.zeros((4, 2, 2, 3), np.uint8)), tmp_path / "list.txt"
    path.write_text("a/0 x.png\nb/1 x.png\n")
    assert Budget.parse(str(path)).rows(source, np.zeros(4)).tolist() == [0, 3]
    path.write_text("0 x.png\n")
    with pytest.raises(ValueError, match="several images have that name"):
        Budget.parse(str(path)).rows(source, np.zeros(4))


def test_budget__a_share_that_no_class_has_an_image_of_is_refused() -> None:
    images = MemorySource(np.zeros((len(LABELS), 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="less than an image of each of the 5 classes: ask for 1/"):
        Budget.parse("1%").rows(images, LABELS)
    assert len(Budget.parse("3%").rows(images, LABELS)) == 5


def test_task__names_of_classes_decide_not_their_numbers() -> None:
    """A class that no test image has shifts no numbers."""
    images = np.zeros((2, 8, 8, 3), np.uint8)
    train = MemorySource(images, np.array([0, 1]), ["b", "c"])
    test = MemorySource(images, np.array([1, 2]), ["a", "b", "c"])
    task = _labelled("mine", FOLDER, train, test, "all")
    assert task.train_labels.tolist() == task.test_labels.tolist() == [0, 1]
