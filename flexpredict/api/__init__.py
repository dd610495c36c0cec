"""What people call from Python; the command line calls the same."""

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
from flexpredict.api.studying import make_trial, run_study

__all__ = [
    "boxes",
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
    "make_trial",
    "pretrain",
    "probe",
    "pull",
    "push",
    "run_study",
    "shifts",
    "video",
    "write_report",
]
