"""A model card, written from what a run folder holds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexpredict.config import Settings, read_settings
from flexpredict.engine.encoders import DESCRIPTION
from flexpredict.model.vit import Encoder
from flexpredict.run_folder import CONFIG, read_evaluations, read_metrics
from flexpredict.version import VERSION

_POINTS = 9  # of the curve
_GAUGES = ("step", "loss", "lr", "norm_A", "knn")
_USE = {
    "huggingface": """from transformers import AutoModel

model = AutoModel.from_pretrained("{folder}")
tokens = model(pixel_values).last_hidden_state  # no class token: use their mean
""",
    "timm": """import timm

model = timm.create_model("local-dir:{folder}", pretrained=True)
features = model(images)  # the mean of the patch tokens
""",
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{folder}/encoder.onnx")
(found,) = session.run(None, {{"images": images}})  # float32, normalised
""",
    "torch": """flexpredict import {folder}/checkpoint.pth.tar --out run/
""",
}


def card(
    run: Path, name: str, encoder: Encoder, which: str, to: str, licence: str | None, parity: str
) -> str:
    """Markdown with the header that hubs read; name: of the exported folder."""
    described = json.loads((run / DESCRIPTION).read_text("utf-8"))
    config = run / CONFIG
    settings = read_settings(config) if config.is_file() else None
    height, width = (side * encoder.patch_size for side in encoder.grid)
    shape = encoder.architecture
    library = {"huggingface": "transformers", "timm": "timm"}.get(to, "flexpredict")
    noisy = settings is None or (settings.stochastic and settings.noise_std > 0)
    tags = ["self-supervised", "ijepa", *(["stop"] if noisy else [])]
    parts = [
        f"---\nlicense: {licence or 'other'}\nlibrary_name: {library}\n"
        f"pipeline_tag: image-feature-extraction\ntags: [{', '.join(tags)}]\n---\n",
        f"# {name}\n",
        f"A Vision Transformer of width {encoder.dim}, depth {shape['depth']} and {shape['heads']} "
        f"heads, patches of {encoder.patch_size} px, {encoder.in_channels} channels, {height}x"
        f"{width} px. Weights of the {which} encoder. There is no class token: the feature of an "
        f"image is the mean of its patch tokens after the final norm.\n",
        f"```\n{_USE[to].format(folder=name)}```\n",
        *_origin(described, settings),
        *_recipe(settings, imported=described.get("imported", {}).get("layout") == "released"),
        *_curve(run),
        *_evaluations(run),
        "## Licence\n",
        (licence or _licence(described)) + "\n",
        "## Checked\n",
        f"{parity}\n\nWritten by FlexPredict {VERSION}.",
    ]
    return "\n".join(parts) + "\n"


def _origin(described: Mapping[str, Any], settings: Settings | None) -> list[str]:
    imported = described.get("imported")
    if imported is not None:
        said = ", ".join(f"{key} {value}" for key, value in imported.items())
        return ["## Origin\n", f"Imported: {said}.\n"]
    data = settings.data if settings is not None and settings.data else "not recorded"
    return ["## Data\n", f"Images: {data}. No labels were used.\n"]


def _recipe(settings: Settings | None, *, imported: bool) -> list[str]:
    if settings is None:
        return []
    usual = Settings().model_dump(mode="json")
    unsure = " The imported file does not tell them: they are the recipe's." if imported else ""
    chosen = settings.model_dump(mode="json")
    rows = [(name, value) for name, value in chosen.items() if value != usual[name]]
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in rows)
    return [
        "## Recipe\n",
        f"Settings other than FlexPredict's defaults (digest {settings.digest()}).{unsure}\n",
        f"```yaml\n{text}```\n",
    ]


def _curve(run: Path) -> list[str]:
    if not (lines := read_metrics(run)):
        return []
    last = len(lines) - 1
    places = sorted({round(last * place / (_POINTS - 1)) for place in range(_POINTS)})
    columns = [name for name in _GAUGES if any(line.get(name) is not None for line in lines)]
    rows = [[lines[place].get(name) for name in columns] for place in places]
    return ["## Curve\n", _table(columns, rows)]


def _evaluations(run: Path) -> list[str]:
    if not (found := read_evaluations(run)):
        return ["## Evaluations\n", "None yet.\n"]
    rows = [
        [
            one["task"],
            ", ".join([f"{one['method']} ({one['protocol']})", *_asked(one)]),
            one["labels"],
            one["encoder"],
            ", ".join(
                f"{name} {value:.1f}"
                for name, value in one["result"].items()
                if isinstance(value, float)
            ),
        ]
        for one in found
    ]
    return ["## Evaluations\n", _table(["task", "method", "labels", "encoder", "result"], rows)]


def _asked(one: Mapping[str, Any]) -> list[str]:
    """What tells two evaluations of one protocol apart."""
    return [f"{key}={value}" for key, value in sorted(one.get("variant", {}).items())]


def _licence(described: Mapping[str, Any]) -> str:
    if "imported" in described:
        return "Imported weights: the licence of their source holds (StoP and I-JEPA: CC BY-NC)."
    return "Not stated by who trained it: `export --license` says it."


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        cells = ["–" if cell is None else shown for cell, shown in zip(row, cells, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
