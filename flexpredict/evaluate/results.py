"""What an evaluation found, with all that is needed to trust it or to do it again."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.files import write_text
from flexpredict.run_folder import EVALUATIONS
from flexpredict.version import VERSION


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one protocol on one encoder."""

    task: str
    method: str  # probe, logistic, knn, finetune, boxes, shifts, video
    protocol: str
    result: dict[str, Any]  # accuracies, J, F and IoU in percent
    encoder: str  # target, context, untrained or pixels
    layers: int | list[int]  # how many last layers
    checkpoint: str  # digest of the encoder's weights
    labels: str = "all"
    seeds: list[int] = field(default_factory=lambda: [0])
    variant: dict[str, Any] = field(default_factory=dict)  # what was asked for unlike the protocol
    data: str = ""  # where the images are, if they are not those of a named task
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    version: str = VERSION

    @property
    def name(self) -> str:
        """Of its file: another for everything that is another evaluation."""
        parts = [self.task, self.method, self.protocol]
        parts += [self.labels] if self.labels != "all" else []
        parts += [self.encoder] if self.encoder != "target" else []
        parts += [f"{key}={_short(value)}" for key, value in sorted(self.variant.items())]
        parts += [hashlib.sha256(self.data.encode()).hexdigest()[:6]] if self.data else []
        return re.sub(r"[^A-Za-z0-9.,%@=_-]+", "-", "-".join(parts))


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 24 else hashlib.sha256(text.encode()).hexdigest()[:8]


def options(**given: Any) -> dict[str, Any]:
    """Those that were asked for."""
    return {name: value for name, value in given.items() if value is not None}


def write(run: Path, evaluation: Evaluation) -> Path:
    """Keeps it in the run's folder; the same evaluation done again takes the place of the old."""
    folder = run / EVALUATIONS
    folder.mkdir(exist_ok=True)
    path = folder / f"{evaluation.name}.json"
    write_text(path, json.dumps(asdict(evaluation), indent=2, allow_nan=False) + "\n")
    return path


def spread(values: list[float]) -> dict[str, Any]:
    """Mean over seeds; the standard deviation where there are several."""
    if len(values) == 1:
        return {"accuracy": values[0]}
    return {
        "accuracy": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)),
        "accuracies": values,
    }
