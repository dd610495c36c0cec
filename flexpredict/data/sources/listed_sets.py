"""Sets whose labels stand in one large list: Places205 and iNaturalist 2018."""

from pathlib import Path

from flexpredict.data.sources.files import FileSource
from flexpredict.data.sources.reading import folder_with, must_hold, read_json, read_lines

_PLACES = "data/vision/torralba/deeplearning"  # as the archive of images unpacks


def places205(root: Path, split: str) -> FileSource:
    """trainvalsplit_places205/{train,val}_places205.csv, images below images256/."""
    images = folder_with(root, "images256", _PLACES) / "images256"
    lists = folder_with(root, "trainvalsplit_places205") / "trainvalsplit_places205"
    rows = {
        name: _places_rows(lists / f"{name}_places205.csv")
        for name in ("train", "val")  # both, so that a label has one name whatever the split
    }
    names: dict[int, str] = {}
    for path, label in (*rows["train"], *rows["val"]):
        if label not in names:
            # a/apartment_building/outdoor/x.jpg: the letter is only there to keep folders small.
            names[label] = "/".join(path.split("/")[1:-1])
    chosen = rows["train" if split == "train" else "val"]
    must_hold(images, chosen[0][0])
    return FileSource(
        images,
        [path for path, _ in chosen],
        [label for _, label in chosen],
        [names.get(label) or str(label) for label in range(max(names) + 1)],
    )


def _places_rows(path: Path) -> list[tuple[str, int]]:
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        file, _, label = line.rpartition(" ")
        if not file or not label.isdecimal() or int(label) >= 205:
            raise ValueError(
                f"{path}, line {number}: expected a file and a label of 0 … 204 as in "
                f"'a/abbey/gsun_0.jpg 0', found {line!r}"
            )
        rows.append((file.lstrip("/"), int(label)))
    return rows


def inat18(root: Path, split: str) -> FileSource:
    """train2018.json and val2018.json, images where they say below root."""
    path = root / {"train": "train2018.json", "test": "val2018.json"}[split]
    content = read_json(folder_with(root, path.name) / path.name)
    try:
        categories = {int(item["id"]): str(item["name"]) for item in content["categories"]}
        files = {item["id"]: str(item["file_name"]) for item in content["images"]}
        category = {item["image_id"]: int(item["category_id"]) for item in content["annotations"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not as published ({type(error).__name__}: {error}): expected categories, "
            f"images and annotations with their ids"
        ) from None
    if not files:
        raise ValueError(f"{path} lists no images: expected the file as it was published")
    number = {key: place for place, key in enumerate(sorted(categories))}
    labels = []
    for key, file in files.items():
        if category.get(key) not in number:
            raise ValueError(f"{path} gives {file} no known category: expected one annotation each")
        labels.append(number[category[key]])
    must_hold(root, next(iter(files.values())))
    return FileSource(root, list(files.values()), labels, [categories[key] for key in number])
