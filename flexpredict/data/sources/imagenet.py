"""ImageNet and Tiny-ImageNet: classes are WordNet numbers, in sorted order."""

from pathlib import Path

from flexpredict.data.sources.base import Source
from flexpredict.data.sources.files import FileSource
from flexpredict.data.sources.folder import images_below
from flexpredict.data.sources.packed import PackedSource
from flexpredict.data.sources.reading import folder_with, must_hold, read_lines


def imagenet(root: Path, split: str) -> FileSource:
    """root/train/<wnid>/*.JPEG and root/val/<wnid>/*.JPEG."""
    part = {"train": "train", "test": "val"}[split]
    folder = folder_with(root, part) / part
    paths = images_below(folder)
    loose = next((path for path in paths if "/" not in path), None)
    if loose is not None:
        raise ValueError(
            f"{folder} has images outside class folders, such as {loose}: "
            f"sort them into class folders (n01440764, …)"
        )
    # Both parts count classes by the training folders, so that a label means the same in both.
    train = root / "train"
    classes = _folders(train if train.is_dir() else folder)
    return _numbered(folder, paths, [path.partition("/")[0] for path in paths], classes, str(train))


def tiny_imagenet(root: Path, split: str) -> Source:
    """The folder tiny-imagenet-200 as published, or a packed .npz file of it."""
    if root.suffix == ".npz":
        return PackedSource(root, {"train": "train", "test": "val"}[split])
    root = folder_with(root, "wnids.txt", "tiny-imagenet-200")
    classes = sorted(line.strip() for line in read_lines(root / "wnids.txt"))
    if split == "train":
        folder = folder_with(root, "train") / "train"
        paths = images_below(folder)
        names = [path.partition("/")[0] for path in paths]
    else:
        annotations = root / "val" / "val_annotations.txt"
        # A line is: file, class, and the four edges of a box.
        rows = [line.split() for line in read_lines(annotations)]
        if short := next((row for row in rows if len(row) < 2), None):
            raise ValueError(f"{annotations}: expected lines of file and class, found {short[0]!r}")
        folder = root / "val" / "images"
        paths, names = [row[0] for row in rows], [row[1] for row in rows]
        must_hold(folder, paths[0])
    return _numbered(folder, paths, names, classes, str(root / "wnids.txt"))


def _folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _numbered(
    folder: Path, paths: list[str], names: list[str], classes: list[str], known_from: str
) -> FileSource:
    """The files with the numbers of their classes; `known_from` is where these are listed."""
    number = {name: place for place, name in enumerate(classes)}
    if unknown := sorted(set(names) - set(number)):
        raise ValueError(
            f"{folder} has the class {unknown[0]}, which is not in {known_from}: "
            f"expected the same classes in both"
        )
    return FileSource(folder, paths, [number[name] for name in names], classes)
