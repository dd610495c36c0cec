"""FlexPredict: StoP and I-JEPA pretraining for Vision Transformers.

>>> import flexpredict as fp
>>> fp.pretrain("photos/", out="run/", model="vit_small", patch_size=16, epochs=100)
>>> encoder = fp.load("run/")
>>> z = encoder.features(images)
"""

from flexpredict.api.evaluation import (
    boxes,
    features,
    finetune,
    knn,
    logistic,
    probe,
    shifts,
    video,
)
from flexpredict.api.exchange import export, import_weights, inspect_weights, pull, push
from flexpredict.api.pretraining import demo, doctor, load, pretrain
from flexpredict.api.reporting import draw_coverage, figures, write_report
from flexpredict.api.studying import run_study
from flexpredict.config import Settings
from flexpredict.model.masking import EvenMasks, Masks, PaperMasks, RandomMasks
from flexpredict.model.positions import StochasticPositions, sincos_positions
from flexpredict.model.vit import Encoder, create_encoder
from flexpredict.version import VERSION

__version__ = VERSION

__all__ = [
    "Encoder",
    "EvenMasks",
    "Masks",
    "PaperMasks",
    "RandomMasks",
    "Settings",
    "StochasticPositions",
    "boxes",
    "create_encoder",
    "demo",
    "doctor",
    "draw_coverage",
    "export",
    "features",
    "figures",
    "finetune",
    "import_weights",
    "inspect_weights",
    "knn",
    "load",
    "logistic",
    "pretrain",
    "probe",
    "pull",
    "push",
    "run_study",
    "shifts",
    "sincos_positions",
    "video",
    "write_report",
]
