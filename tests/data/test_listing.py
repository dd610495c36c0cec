"""Lists of images that a person wrote, as text and as CSV, and lists that must be refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.decode import decode
from flexpredict.data.sources import ListSource, open_source


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """lists/ beside images/, where 0.png … 4.png are red by their number, and one odd name."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (8, 6), (50 * number, 0, 0)).save(folder / f"{number}.png")
    Image.new("RGB", (8, 6), "blue").save(folder / "über, drüben.png")
    (tmp_path / "lists").mkdir()
    return folder


def _list(images: Path, name: str, content: str, encoding: str = "utf-8") -> Path:
    path = images.parent / "lists" / name
    path.write_text(content, encoding=encoding, newline="")
    return path


def _refused(path: Path) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        open_source(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_text__paths_from_the_lists_folder_or_absolute(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["../images/3.png", "", f"  {images / '1.png'}\r", "../images/über, drüben.png"]
    path = _list(images, "photos.txt", "\n".join(lines), encoding="utf-8-sig")
    source = open_source(str(path))
    assert isinstance(source, ListSource)
    assert [decode(source.read(i))[0, 0].tolist() for i in range(len(source))] == [
        [150, 0, 0], [50, 0, 0], [0, 0, 255]
    ]  # fmt: skip
    assert [source.name(0), source.name(2)] == [lines[0], lines[3]]
    assert source.labels is None
    assert pickle.loads(pickle.dumps(source)).read(0) == source.read(0)
    monkeypatch.chdir(path.parent)
    assert open_source("photos.txt").read(0) == source.read(0)


def test_text__names_that_are_not_utf8(images: Path) -> None:
    odd = images / b"\xe9t\xe9.png".decode(errors="surrogateescape")
    (images / "4.png").rename(odd)
    path = images / "list.txt"
    path.write_bytes(b"\xe9t\xe9.png\n0.png\n")
    source = open_source(path)
    assert decode(source.read(0))[0, 0, 0] == 200


def test_stamp__follows_the_files(images: Path) -> None:
    path = _list(images, "photos.txt", "../images/0.png\n../images/1.png\n")
    before = [open_source(path).stamp(), open_source(path).stamp()]
    (images / "0.png").write_bytes(b"other")
    assert before[0] == before[1] != open_source(path).stamp()


@pytest.mark.parametrize(
    "content",
    [
        'path,label\n../images/0.png,cat\n../images/1.png,ant\n"../images/über, drüben.png",cat\n',
        'Class,id,FILENAME\ncat,7,../images/0.png\nant,8,../images/1.png\n\ncat,9,"../images/über, '
        'drüben.png"\n',
        '../images/0.png,cat\r\n../images/1.png,ant\r\n"../images/über, drüben.png", cat\r\n',
    ],
    ids=["header", "other columns", "no header"],
)
def test_table__paths_and_labels(images: Path, content: str) -> None:
    source = open_source(_list(images, "photos.CSV", content))
    assert source.classes == ["ant", "cat"]
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [1, 0, 1]
    assert [decode(source.read(i))[0, 0].tolist() for i in range(3)] == [
        [0, 0, 0], [50, 0, 0], [0, 0, 255]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1", "9"], ["-1", "9", "10"]),
        (["10", "9", "nan", "9"], ["10", "9", "nan"]),  # names, then, in the order of names
        (["1.5", "10", "2", "10"], ["1.5", "2", "10"]),
    ],
)
def test_table__numbers_are_sorted_as_numbers(
    images: Path, labels: list[str], classes: list[str]
) -> None:
    rows = [f"../images/{row}.png,{label}" for row, label in enumerate(labels)]
    source = open_source(_list(images, "photos.csv", "\n".join(["image,label", *rows])))
    assert source.classes == classes
    assert source.labels is not None
    assert [source.classes[label] for label in source.labels] == labels


def test_table__without_labels(images: Path) -> None:
    for content in ("file,note\n../images/0.png,x\n", "../images/0.png\n", "../images/0.png,\n"):
        source = open_source(_list(images, "photos.csv", content))
        assert len(source) == 1
        assert source.labels is None
        assert source.classes == []


def test_missing__files_are_counted_and_the_first_is_named(images: Path) -> None:
    path = _list(images, "photos.txt", "../images/0.png\n../images/x.png\n../images\n")
    assert "names 3 files of which 2 are not there, the first is ../images/x.png" in _refused(path)
    table = _list(images, "photos.csv", "where,label\n../images/0.png,1\n")
    assert "1 are not there, the first is where" in _refused(table)
    assert "a header with a column path, file, image, filename" in _refused(table)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.txt", "\n \n", "names no images"),
        ("empty.csv", "", "names no images"),
        ("header.csv", "path,label\n", "names no images"),
        (
            "ragged.csv",
            "path,label\n../images/0.png,1\n../images/1.png\n",
            "line 3: expected 2 col",
        ),
        ("quote.csv", 'path,label\n"../images/0.png,1\n', "cannot be read as CSV"),
        ("some.csv", "path,label\n../images/0.png,1\n../images/1.png,\n", "labels 1 of its 2"),
        ("hole.csv", "path,label\n../images/0.png,1\n,2\n", "1 rows without a path"),
    ],
)
def test_bad_lists__get_one_sentence(images: Path, name: str, content: str, reason: str) -> None:
    assert reason in _refused(_list(images, name, content))


def test_bad_lists__that_are_no_text(images: Path) -> None:
    assert "saved as UTF-8" in _refused(_list(images, "a.txt", "0.png\n", encoding="utf-16"))
    assert "no such file" in _refused(images / "nowhere.csv")


def test_folder__may_have_the_name_of_a_list(images: Path) -> None:
    assert len(open_source(images.rename(images.parent / "photos.txt"))) == 6
