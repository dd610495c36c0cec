"""What evaluations look like on a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from flexpredict.evaluate.results import Evaluation
from flexpredict.report.table import Cell, PublishedTable


def print_accuracy(found: Evaluation) -> None:
    result = found.result
    value = f"{result['accuracy']:.1f} %"
    if "std" in result:
        value += f" ± {result['std']:.1f} over {len(found.seeds)} draws"
    also = [
        f"{name.replace('_', ' ')} {number:.1f}"
        for name, number in result.items()
        if name not in ("accuracy", "std", "accuracies") and isinstance(number, float)
    ]
    budget = "" if found.labels == "all" else f", labels {found.labels}"
    print(f"{found.task}, {found.method} ({found.protocol}{budget}): {value}")
    if also:
        print(f"  {', '.join(also)}")
    print(f"  {found.encoder} encoder, layers {_layers(found)}{_asked(found)}; {found.note}")


def _layers(found: Evaluation) -> str:
    several = isinstance(found.layers, list)
    return f"{', '.join(map(str, found.layers))} by draw" if several else str(found.layers)  # type: ignore[arg-type]


def _asked(found: Evaluation) -> str:
    """What was asked for unlike the protocol, and how many images there were."""
    parts = [f"{key}={value}" for key, value in sorted(found.variant.items())]
    if {"train_images", "test_images"} <= found.details.keys():
        parts.append(
            "{train_images:,} train and {test_images:,} test images".format(**found.details)
        )
    return "".join(f", {part}" for part in parts)


def print_boxes(found: Evaluation) -> None:
    table = Table()
    for name in ("boxes", "mean IoU", "IoU of 50 or more"):
        table.add_column(name, justify="left" if name == "boxes" else "right")
    for name, prefix in (("ridge on features", ""), ("the mean box of train", "mean_box_")):
        numbers = (found.result[f"{prefix}{key}"] for key in ("iou", "iou_over_50"))
        table.add_row(name, *(f"{number:.1f} %" for number in numbers))
    Console().print(table)
    print(f"{found.task}: {found.encoder} encoder, layers {found.layers}; {found.note}")


def print_shifts(found: Evaluation) -> None:
    table = Table()
    for name in ("moved by", "accuracy", "likeness"):
        table.add_column(name, justify="right")
    table.add_row("0 px", f"{found.result['accuracy']:.1f} %", "1.000")
    for name in found.result:
        if name.startswith("likeness_"):
            distance = name.removeprefix("likeness_")
            accuracy = found.result[f"accuracy_{distance}"]
            table.add_row(f"{distance} px", f"{accuracy:.1f} %", f"{found.result[name]:.3f}")
    Console().print(table)
    print(f"{found.task}: {found.encoder} encoder; {found.note}")


def print_video(found: Evaluation) -> None:
    if not found.result:
        why = "no truth for every frame"
        if found.details["scored"]:
            why = "the true masks name no object (white objects are those of --task davis2016)"
        print(f"{found.task}: {why}, so masks were made and nothing was scored")
        return
    table = Table()
    for name in ("object", "J mean", "recall", "decay", "F mean", "recall", "decay"):
        table.add_column(name, justify="left" if name == "object" else "right")

    def row(name: str, j: dict[str, Any], f: dict[str, Any]) -> None:
        numbers = [part[key] for part in (j, f) for key in ("mean", "recall", "decay")]
        table.add_row(name, *(f"{number:.1f}" for number in numbers))

    for one in found.details["objects"]:
        row(f"{one['video']} {one['object']}", one["J"], one["F"])
    whole = found.result
    parts = [
        {"mean": whole[m], "recall": whole[f"{m}_recall"], "decay": whole[f"{m}_decay"]}
        for m in ("J", "F")
    ]
    row("all", parts[0], parts[1])
    Console().print(table)
    print(f"{found.task}: J&F {whole['J&F']:.1f}; {found.encoder} encoder, {found.note}")


def print_table(found: PublishedTable) -> None:
    shown = Table(title=f"Table {found.number}: {found.title}")
    shown.add_column("")
    shown.add_column("model")
    for column in found.columns:
        shown.add_column(column, justify="right")
    for kind, model, cells in found.rows:
        shown.add_row(kind, model, *(_cell(cell) for cell in cells))
    Console().print(shown)
    print("published" if not _own(found) else "published → yours (difference)")
    for remark in (found.note, *found.remarks):
        if remark:
            print(remark)


def _own(found: PublishedTable) -> bool:
    return any(cell.own is not None for _, _, cells in found.rows for cell in cells)


def _cell(cell: Cell) -> str:
    if cell.own is None or cell.difference is None:
        return f"{cell.published:.1f}"
    return f"{cell.published:.1f} → {cell.own:.1f} ({cell.difference:+.1f})"
