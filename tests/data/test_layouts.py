"""Published layouts: each in miniature as it is published, and broken; real samples where present.

What must hold for all: labels and classes, names below the root, one sentence for what is wrong.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import SAFELY
from PIL import Image

from flexpredict.data.decode import decode
from flexpredict.data.render import CUBE, METAL, RUBBER, SPHERE
from flexpredict.data.scenes import describe
from flexpredict.data.sources import (
    LAYOUTS,
    FileSource,
    FolderSource,
    MemorySource,
    PackedSource,
    Source,
    open_source,
)
from flexpredict.data.sources.clevr import count_label, dist_label

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder shared/data is not beside the project"
)


def _image(path: Path, red: int = 0, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (red, 0, 0)).save(path)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _labels_in_order(source: Source) -> list[int]:
    assert source.labels is not None
    return source.labels.tolist()


def _labels(source: Source) -> dict[str, int]:
    labels = _labels_in_order(source)
    return {source.name(i): labels[i] for i in range(len(source))}


def _refused(sentence: str, spec: Any, layout: str | None, split: str | None = "train") -> None:
    with pytest.raises(ValueError, match=sentence):
        open_source(spec, layout=layout, split=split)


# What all layouts share


def test_layout__wrong_names_get_one_sentence(tmp_path: Path) -> None:
    _refused("no layout 'imagnet': choose one of imagenet, tiny-imagenet", tmp_path, "imagnet")
    _refused("cifar10 got the split 'val': choose one of train, test", tmp_path, "cifar10", "val")
    _refused("cifar10 got no split", tmp_path, "cifar10", None)
    _refused("split 'train' was given without a layout", tmp_path, None)
    _refused("no data was given", None, None, None)
    _refused("no data was given", "", None, None)
    _refused("data is of type int: expected a path", 5, None, None)
    _refused("imagenet is read from a folder, not from nothing", None, "imagenet")
    _refused("not from a ndarray", np.zeros((1, 2, 2, 3), np.uint8), "imagenet")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout__an_absent_or_empty_root_is_refused(layout: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        _refused("no such file or folder, expected the root of", tmp_path / "no", layout, split)
        _refused(r"lacks .*: expected it in", tmp_path, layout, split)


def test_files__order_labels_and_no_way_out(tmp_path: Path) -> None:
    _image(tmp_path / "b" / "x.png", 200)
    _image(tmp_path / "a.png", 100)
    source = FileSource(tmp_path, ["b/x.png", "a.png"], [1, 0], ["dog", "cat"])
    assert _labels(source) == {"b/x.png": 1, "a.png": 0}
    assert [decode(source.read(i))[0, 0, 0] for i in range(2)] == [200, 100]
    for path in ("../a.png", "b/../../a.png", "/etc/passwd"):
        with pytest.raises(ValueError, match="leads out of"):
            FileSource(tmp_path, [path])


def test_stamp__of_files_changes_with_names_sizes_times_and_losses(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "b/2.png"):
        _image(tmp_path / name)
    stamps = [FolderSource(tmp_path).stamp(), FolderSource(tmp_path).stamp()]
    assert stamps[0] == stamps.pop()
    os.utime(tmp_path / "a/0.png", ns=(1, 1))
    stamps.append(FolderSource(tmp_path).stamp())
    (tmp_path / "a/0.png").write_bytes(b"longer or shorter")
    os.utime(tmp_path / "a/0.png", ns=(1, 1))
    stamps.append(FolderSource(tmp_path).stamp())
    (tmp_path / "a/0.png").rename(tmp_path / "a/3.png")
    source = FolderSource(tmp_path)
    stamps.append(source.stamp())
    (tmp_path / "a/3.png").unlink()
    stamps.append(source.stamp())
    assert None not in stamps
    assert len(set(stamps)) == 5


def test_stamp__of_a_packed_file_knows_its_split_and_of_an_array_is_none(tmp_path: Path) -> None:
    path = _packed(tmp_path / "set.npz")
    stamps = [PackedSource(path, split).stamp() for split in (None, "train", "val")]
    os.utime(path, ns=(1, 1))
    stamps.append(PackedSource(path).stamp())
    assert None not in stamps
    assert len(set(stamps)) == 4
    assert MemorySource(np.zeros((1, 2, 2, 3), np.uint8)).stamp() is None


# ImageNet and Tiny-ImageNet


def _imagenet(root: Path) -> Path:
    for part, name in (("train", "n02_10.JPEG"), ("train", "n01_7.JPEG"), ("val", "n02_1.JPEG")):
        _image(root / part / name[:3] / name)
    return root


def test_imagenet__both_splits_share_the_sorted_classes(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    train, test = (open_source(root, layout="imagenet", split=s) for s in ("train", "test"))
    assert _labels(train) == {"n01/n01_7.JPEG": 0, "n02/n02_10.JPEG": 1}
    assert _labels(test) == {"n02/n02_1.JPEG": 1}  # though val alone has one class
    assert train.classes == test.classes == ["n01", "n02"]
    assert decode(test.read(0)).shape == (4, 6, 3)


def test_imagenet__flat_or_foreign_val_is_refused(tmp_path: Path) -> None:
    root = _imagenet(tmp_path)
    _image(root / "val" / "n03" / "n03_1.JPEG")
    _refused("has the class n03, which is not in .*train", root, "imagenet", "test")
    shutil.rmtree(root / "val")
    _image(root / "val" / "ILSVRC2012_val_00000001.JPEG")
    _refused("such as ILSVRC2012_val_00000001.JPEG: sort them into", root, "imagenet", "test")


def _tiny(root: Path) -> Path:
    _write(root / "wnids.txt", "n02\nn01\n")
    _image(root / "train/n01/images/n01_0.JPEG")
    _image(root / "train/n02/images/n02_0.JPEG")
    _write(root / "train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t3\t3\n")
    _image(root / "val/images/val_0.JPEG", 90)
    _image(root / "val/images/val_1.JPEG")
    _write(
        root / "val/val_annotations.txt",
        "val_1.JPEG\tn01\t0\t0\t3\t3\nval_0.JPEG\tn02\t0\t0\t3\t3\n",
    )
    return root


def _packed(path: Path) -> Path:
    np.savez(
        path,
        jpeg=np.arange(6, dtype=np.uint8),
        offset=np.array([0, 1, 3, 6]),
        label=np.array([4, 2, 4]),
        split=np.array([0, 0, 1]),
    )
    return path


def test_tiny_imagenet__folder_and_packed_file(tmp_path: Path) -> None:
    _tiny(tmp_path / "tiny-imagenet-200")
    train, test = (
        open_source(tmp_path, layout="tiny-imagenet", split=s) for s in ("train", "test")
    )
    assert _labels(train) == {"n01/images/n01_0.JPEG": 0, "n02/images/n02_0.JPEG": 1}
    assert _labels(test) == {"val_1.JPEG": 0, "val_0.JPEG": 1}
    assert train.classes == test.classes == ["n01", "n02"]
    assert abs(int(decode(test.read(1))[0, 0, 0]) - 90) < 8  # the red one, as JPEG keeps it
    path = _packed(tmp_path / "set.npz")
    packed = open_source(path, layout="tiny-imagenet", split="test")
    assert _labels(packed) == {"set.npz, image 2": 1}
    assert packed.read(0) == bytes([3, 4, 5])


def test_tiny_imagenet__lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    root = _tiny(tmp_path)
    annotations = root / "val/val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn09\t0\t0\t3\t3\n")
    _refused("has the class n09, which is not in .*wnids.txt", root, "tiny-imagenet", "test")
    annotations.write_text("val_0.JPEG\n")
    _refused("expected lines of file and class, found 'val_0.JPEG'", root, "tiny-imagenet", "test")
    annotations.write_text("val_7.JPEG\tn01\n")
    _refused("val_7.JPEG is listed but not there", root, "tiny-imagenet", "test")
    annotations.unlink()
    _refused("val_annotations.txt is missing", root, "tiny-imagenet", "test")


# Places205 and iNaturalist 2018


def _places(root: Path, images: str = "images256") -> Path:
    lists = root / "trainvalsplit_places205"
    train = "w/yard/gsun_1.jpg 2\na/abbey/gsun_2.jpg 0\na/apartment_building/outdoor/gsun_3.jpg 1\n"
    _write(lists / "train_places205.csv", train)
    _write(lists / "val_places205.csv", "a/abbey/gsun_4.jpg 0\n")
    for name in ("w/yard/gsun_1", "a/abbey/gsun_2", "a/abbey/gsun_4"):
        _image(root / images / f"{name}.jpg")
    return root


@pytest.mark.parametrize(
    "images", ["images256", "data/vision/torralba/deeplearning/images256"], ids=["flat", "archive"]
)
def test_places205__lists_name_files_and_labels(images: str, tmp_path: Path) -> None:
    root = _places(tmp_path, images)
    train, test = (open_source(root, layout="places205", split=s) for s in ("train", "test"))
    assert [train.name(i) for i in range(2)] == ["w/yard/gsun_1.jpg", "a/abbey/gsun_2.jpg"]
    assert list(_labels(train).values()) == [2, 0, 1]  # in the order of the list
    assert _labels(test) == {"a/abbey/gsun_4.jpg": 0}
    assert train.classes == test.classes == ["abbey", "apartment_building/outdoor", "yard"]
    assert decode(test.read(0)).shape == (4, 6, 3)


def test_places205__bad_lines_and_packed_images_are_refused(tmp_path: Path) -> None:
    root = _places(tmp_path)
    path = root / "trainvalsplit_places205" / "val_places205.csv"
    for line in ("a/abbey/gsun_4.jpg", "a/abbey/gsun_4.jpg x", "a/abbey/gsun_4.jpg 205"):
        path.write_text(f"a/abbey/gsun_4.jpg 0\n{line}\n")
        _refused(f"line 2: expected a file and a label.*found '{line}'", root, "places205", "test")
    path.write_text("a/abbey/gsun_5.jpg 0\n")
    _refused("gsun_5.jpg is listed but not there: unpack", root, "places205", "test")
    path.write_text("../abbey/gsun_4.jpg 0\n")
    _image(root / "abbey" / "gsun_4.jpg")
    _refused("leads out of", root, "places205", "test")
    path.write_text("")
    _refused("val_places205.csv is empty", root, "places205", "test")


def _inat(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = {
        "info": {},
        "categories": [
            {"id": 8, "name": "Quercus alba", "supercategory": "Plantae"},
            {"id": 5, "name": "Bufo bufo", "supercategory": "Amphibia"},
        ],
        "images": [
            {"id": 90, "file_name": "train_val2018/Plantae/8/ab.jpg", "width": 6, "height": 4},
            {"id": 3, "file_name": "train_val2018/Amphibia/5/cd.jpg", "width": 6, "height": 4},
        ],
        "annotations": [
            {"id": 3, "image_id": 3, "category_id": 5},
            {"id": 90, "image_id": 90, "category_id": 8},
        ],
    }
    for image in content["images"]:
        _image(root / image["file_name"])
    return content


def test_inat18__labels_by_category_number(tmp_path: Path) -> None:
    content = _inat(tmp_path)
    _write(tmp_path / "train2018.json", json.dumps(content))
    content["images"].pop(0)
    _write(tmp_path / "val2018.json", json.dumps(content))
    train, test = (open_source(tmp_path, layout="inat18", split=s) for s in ("train", "test"))
    plant, toad = "train_val2018/Plantae/8/ab.jpg", "train_val2018/Amphibia/5/cd.jpg"
    assert _labels(train) == {plant: 1, toad: 0}
    assert _labels(test) == {toad: 0}
    assert train.classes == test.classes == ["Bufo bufo", "Quercus alba"]
    assert decode(train.read(1)).shape == (4, 6, 3)


def test_inat18__broken_files_are_refused(tmp_path: Path) -> None:
    def broken(change: Callable[[dict[str, Any]], Any], sentence: str) -> None:
        content = _inat(tmp_path)
        change(content)
        _write(tmp_path / "train2018.json", json.dumps(content))
        _refused(sentence, tmp_path, "inat18")

    broken(lambda c: c["annotations"].pop(), "gives train_val2018/Plantae/8/ab.jpg no known")
    broken(lambda c: c["categories"].pop(0), "gives train_val2018/Plantae/8/ab.jpg no known")
    broken(lambda c: c.pop("annotations"), "not as published .KeyError: 'annotations'")
    broken(lambda c: c.update(images=[]), "lists no images")
    broken(lambda c: c["images"][0].update(file_name="x.jpg"), "x.jpg is listed but not there")
    _write(tmp_path / "train2018.json", '{"images": [')
    _refused(r"train2018.json is damaged .*: fetch it again", tmp_path, "inat18")


# CLEVR


def _objects(*depths: float) -> list[dict[str, Any]]:
    return [{"pixel_coords": [100, 80, depth], "shape": "cube"} for depth in depths]


def _clevr(root: Path, scenes: Sequence[list[dict[str, Any]]], part: str) -> Path:
    described = []
    for index, objects in enumerate(scenes):
        name = f"CLEVR_{part}_{index:06d}.png"
        _image(root / "images" / part / name)
        relationships: dict[str, Any] = {"left": [[1], []]}
        described.append(
            {"image_filename": name, "objects": objects, "relationships": relationships}
        )
    path = root / "scenes" / f"CLEVR_{part}_scenes.json"
    _write(path, json.dumps({"info": {"split": part}, "scenes": described}))
    return root


@pytest.mark.parametrize("inner", ["", "CLEVR_v1.0"])
def test_clevr__count_and_distance_of_the_published_layout(inner: str, tmp_path: Path) -> None:
    root = _clevr(tmp_path / inner, [_objects(9.1, 8.2, 11), _objects(*[10.5] * 10)], "train")
    _clevr(root, [_objects(12, 12, 9.2, 12)], "val")
    opened = {
        (task, split): open_source(tmp_path, layout=f"clevr-{task}", split=split)
        for task in ("count", "dist")
        for split in ("train", "test")
    }
    names = ["CLEVR_train_000000.png", "CLEVR_train_000001.png"]
    assert _labels(opened["count", "train"]) == dict(zip(names, [0, 7], strict=True))
    assert _labels(opened["dist", "train"]) == dict(zip(names, [1, 5], strict=True))
    assert _labels(opened["count", "test"]) == {"CLEVR_val_000000.png": 1}
    assert _labels(opened["dist", "test"]) == {"CLEVR_val_000000.png": 3}
    assert opened["count", "train"].classes == ["3", "4", "5", "6", "7", "8", "9", "10"]
    assert opened["dist", "test"].classes[::5] == ["(0, 8]", "(10, 100]"]
    assert decode(opened["dist", "test"].read(0)).shape == (4, 6, 3)


def test_clevr__bins_are_closed_on_the_right() -> None:
    edges = [8, 8.5, 9, 9.5, 10, 100]
    assert [dist_label(_objects(edge, 1000)) for edge in edges] == [0, 1, 2, 3, 4, 5]
    above = [np.nextafter(edge, 1000) for edge in edges[:-1]]
    assert [dist_label(_objects(1000, depth)) for depth in above] == [1, 2, 3, 4, 5]
    assert dist_label(_objects(1e-9)) == 0
    for depth in (0.0, -1.0, np.nextafter(100, 101), float("nan")):
        with pytest.raises(ValueError, match="expected more than 0 and at most 100"):
            dist_label(_objects(depth))
    assert [count_label(_objects(*[9] * count)) for count in (3, 10)] == [0, 7]
    for count in (2, 11):
        with pytest.raises(ValueError, match=f"{count} objects, expected 3 to 10"):
            count_label(_objects(*[9] * count))


def test_clevr__broken_scenes_are_refused(tmp_path: Path) -> None:
    _clevr(tmp_path, [_objects(9, 9)], "train")
    _refused("scenes.json: a scene has 2 objects, expected 3 to 10", tmp_path, "clevr-count")
    _clevr(tmp_path, [[]], "train")
    _refused("a scene has .*so it cannot be labelled", tmp_path, "clevr-dist")
    _clevr(tmp_path, [[{"shape": "cube"}] * 3], "train")
    _refused("a scene has no 'pixel_coords'", tmp_path, "clevr-dist")
    _clevr(tmp_path, [], "train")
    _refused("describes no scenes for train", tmp_path, "clevr-dist")
    _clevr(tmp_path, [_objects(9, 9, 9)], "train")
    (tmp_path / "images/train/CLEVR_train_000000.png").unlink()
    _refused("000000.png is described in .* but not there", tmp_path, "clevr-count")
    _refused("CLEVR_val_scenes.json is missing", tmp_path, "clevr-count", "test")
    _write(tmp_path / "scenes/CLEVR_val_scenes.json", "[]")
    _refused("holds no JSON object", tmp_path, "clevr-count", "test")


@needs_shared
def test_clevr__real_renders_with_one_file_per_scene(tmp_path: Path) -> None:
    with tarfile.open(SHARED / "clevr-like-125.tar") as archive:
        archive.extractall(tmp_path, **SAFELY)
    count, dist = (
        open_source(tmp_path, layout=f"clevr-{task}", split="train") for task in ("count", "dist")
    )
    assert count.labels is not None
    assert np.bincount(count.labels).tolist() == [23, 31, 22, 24]  # as its README says
    assert dist.labels is not None
    assert dist.labels.min() == 0  # the nearest object is at 7.06, the farthest nearest at 10.91
    assert len(open_source(tmp_path, layout="clevr-dist", split="test")) == 20
    assert [dist.name(0), decode(dist.read(0)).shape] == ["CLEVR_new_000000.png", (224, 224, 3)]


# The embedded scenes


def test_scenes__tasks_of_both_splits() -> None:
    tasks = {"count": 8, "dist": 6, "class": 6}
    labels = {}
    for task, classes in tasks.items():
        source = open_source("scenes:24", layout=f"scenes-{task}", split="train", image_size=32)
        assert decode(source.read(0)).shape == (32, 32, 3)
        assert len(source.classes) == len(set(source.classes)) == classes
        assert source.labels is not None
        labels[task] = source.labels.tolist()
        assert max(labels[task]) < classes
    assert len({tuple(task) for task in labels.values()}) == 3
    train = open_source("scenes:24", image_size=32)
    test = open_source("scenes:24", layout="scenes-count", split="test", image_size=32)
    assert not np.array_equal(test.read(0), source.read(0))
    np.testing.assert_array_equal(train.read(3), source.read(3))
    assert train.stamp() == source.stamp() != test.stamp()


def test_scenes__class_names_say_what_was_rendered() -> None:
    scene = describe(0, np.arange(24))
    opened = {
        task: open_source("scenes:24", layout=f"scenes-{task}", split="train", image_size=32)
        for task in ("count", "class")
    }
    names = {
        task: [source.classes[label] for label in _labels_in_order(source)]
        for task, source in opened.items()
    }
    assert names["count"] == [str(count) for count in scene.count]
    shapes, materials = {SPHERE: "sphere", CUBE: "cube"}, {RUBBER: "rubber", METAL: "metal"}
    largest = [(int(scene.material[i, 0]), int(scene.shape[i, 0])) for i in range(24)]
    assert names["class"] == [f"{materials[m]} {shapes.get(s, 'cylinder')}" for m, s in largest]


def test_scenes__by_default_8000_and_4000(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def render(name: str, *, count: int, size: int, **_: Any) -> Any:
        asked.append((name, count, size))
        return np.zeros((count, 1, 1, 3), np.uint8), {"dist": np.zeros(count, np.int64)}

    monkeypatch.setattr("flexpredict.data.sources.scenes.scenes", render)
    for split in ("train", "test"):
        open_source(None, layout="scenes-dist", split=split, image_size=96)
    assert asked == [("scenes", 8_000, 96), ("scenes-test", 4_000, 96)]


def test_scenes__a_folder_or_a_bad_count_is_refused(tmp_path: Path) -> None:
    _refused("scenes-dist is rendered, not read from", tmp_path, "scenes-dist")
    _refused("scenes:many: expected a number of scenes", "scenes:many", "scenes-dist")
