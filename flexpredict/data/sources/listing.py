"""A list of image files that a person wrote: paths in a .txt file, or paths and labels in a .csv.

.txt  one path per line
.csv  with a header: a column path, file, image or filename, and perhaps one label or class
      without:       the path first, then perhaps the label

Paths are absolute or start at the folder of the list, and unlike those of a published data set
they may lead anywhere: whoever names the list also wrote it.
"""

import csv
import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.files import PathSource

SUFFIXES = frozenset({".txt", ".csv"})
_PATH_COLUMNS = ("path", "file", "image", "filename")
_LABEL_COLUMNS = ("label", "class")


class ListSource(PathSource):
    """The images that a list names, in its order."""

    def __init__(self, path: Path) -> None:
        lines = _read(path)
        self.labels, self.classes = None, []
        if path.suffix.lower() == ".csv":
            self.paths, labels = _read_table(path, lines)
            if labels:
                self.labels, self.classes = number_labels(labels)
        else:
            self.paths = [line.strip() for line in lines if line.strip()]
        if not self.paths:
            raise ValueError(f"{path} names no images: expected one path per line")
        self.root = path.parent
        _check_present(path, self.root, self.paths)


def number_labels(labels: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers of labels, and the classes in order: by value if all are numbers, else by name."""
    names = set(labels)
    values = {name: _value(name) for name in names}
    if all(value is not None for value in values.values()):
        classes = sorted(names, key=lambda name: (values[name] or 0, name))
    else:
        classes = sorted(names)
    number = {name: place for place, name in enumerate(classes)}
    return np.array([number[label] for label in labels], dtype=np.int64), classes


def _value(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # a class may well be called nan or infinity


def _read(path: Path) -> list[str]:
    try:
        # File names need not be UTF-8: bytes that are not are kept as the file system gives them.
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = list(file)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file, expected a list of paths") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if any("\0" in line for line in lines):
        raise ValueError(f"{path} is no list of paths: expected text, saved as UTF-8")
    return lines


def _read_table(path: Path, lines: list[str]) -> tuple[list[str], list[str]]:
    """Paths and labels; no labels at all if there is no column of them."""
    reader = csv.reader(lines, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if rows and len(cells) != len(rows[0]):
                raise ValueError(
                    f"{path}, line {reader.line_num}: expected {len(rows[0])} columns as in the "
                    f"first line, found {len(cells)}"
                )
            rows.append(cells)
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: cannot be read as CSV ({error}), expected columns "
            f"with commas between them"
        ) from None
    if not rows:
        return [], []
    path_column, label_column, has_header = _columns(rows[0])
    rows = rows[1:] if has_header else rows
    paths = [row[path_column] for row in rows]
    if not all(paths):
        raise ValueError(f"{path} has {paths.count('')} rows without a path: expected one in each")
    labels = [] if label_column is None else [row[label_column] for row in rows]
    if any(labels) and not all(labels):
        raise ValueError(
            f"{path} labels {len(labels) - labels.count('')} of its {len(labels)} images: "
            f"expected a label for each or for none"
        )
    return paths, labels if any(labels) else []


def _columns(first: list[str]) -> tuple[int, int | None, bool]:
    """The columns of paths and labels, and whether the first row is a header."""
    names = [cell.lower() for cell in first]
    path = next((names.index(name) for name in _PATH_COLUMNS if name in names), None)
    if path is None:
        return 0, 1 if len(names) > 1 else None, False
    return path, next((names.index(name) for name in _LABEL_COLUMNS if name in names), None), True


def _check_present(path: Path, root: Path, paths: list[str]) -> None:
    missing = [name for name in paths if not os.path.isfile(root / name)]
    if not missing:
        return
    expected = f"paths that are absolute or start at {root}"
    if path.suffix.lower() == ".csv":
        expected += f", under a header with a column {', '.join(_PATH_COLUMNS)} or none"
    raise ValueError(
        f"{path} names {len(paths)} files of which {len(missing)} are not there, the first is "
        f"{missing[0]}: expected {expected}"
    )
