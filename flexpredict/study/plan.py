"""What a study is: variants × seeds of one recipe, and what is measured of each run."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flexpredict.config import Settings, first_sentence, settings_from
from flexpredict.written import meant, parse_yaml, read_text

Method = Literal["probe", "logistic", "knn", "finetune", "video", "boxes", "shifts", "learnt"]


class Measure(BaseModel):
    """An evaluation of a run, and the number of its result that counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method
    key: str = "accuracy"
    # What the method takes: task, data, labels, draws, layers, …
    options: dict[str, Any] = {}


class Study(BaseModel):
    """As written in a YAML file. Runs that share a seed share first weights, order, crops, masks.

    sweep: settings with several values each; every variant is run with every combination.
    baseline: the variant that the others are compared with, seed by seed; or, for each variant that
        is compared with one, which.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    question: str
    recipe: str
    data: str | None = None
    settings: dict[str, Any] = {}
    variants: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    baseline: str | dict[str, str] | None = None
    measures: dict[str, Measure] = {}
    gauges: list[str] = []  # of the last line of metrics

    @property
    def asked(self) -> str:
        """A short name for what is measured."""
        text = json.dumps({k: m.model_dump() for k, m in self.measures.items()}, sort_keys=True)
        return hashlib.sha256((text + str(self.gauges)).encode()).hexdigest()[:12]


class Trial(BaseModel):
    """One run of a study."""

    model_config = ConfigDict(frozen=True)

    variant: str
    group: str  # the variant without its swept values
    swept: dict[str, Any]  # what the study sweeps, as this trial has it
    seed: int
    settings: Settings

    @property
    def key(self) -> str:
        """A short name for all of its settings, also those that change no result."""
        return hashlib.sha256(self.settings.model_dump_json().encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.variant}-seed{self.seed}".replace("/", "-").replace(" ", "_")


def study_names() -> list[str]:
    folder = resources.files("flexpredict") / "study" / "studies"
    names = [path.name for path in folder.iterdir() if path.name.endswith(".yaml")]
    return sorted(name.removesuffix(".yaml") for name in names)


def read_study(name: str) -> Study:
    """A study that comes with the package, by its name, or the path of a YAML file."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise ValueError(f"study {name}: no such file")
        text = read_text(Path(name))
    elif name in study_names():
        file = resources.files("flexpredict") / "study" / "studies" / f"{name}.yaml"
        text = file.read_text("utf-8")
    else:
        hint = meant(name, study_names(), f"choose one of {', '.join(study_names())}")
        raise ValueError(f"there is no study {name!r}: {hint}")
    values = parse_yaml(text, f"study {name}")
    if not isinstance(values, dict):
        raise ValueError(f"study {name} holds nothing: expected title, recipe, variants, …")
    try:
        study = Study(**values)
    except ValidationError as error:
        raise ValueError(f"study {name}: {first_sentence(error)}") from None
    told = [("settings", study.settings), ("sweep", study.sweep), *study.variants.items()]
    for where, some in told:
        for own in {"data", "seed"} & some.keys():
            raise ValueError(
                f"study {name}, {where}: {own} is the same for all variants, so that they can be "
                f"compared: say it once, as {own if own == 'data' else 'seeds'} of the study"
            )
    made = [trial.variant for trial in trials(study, study.data or "scenes", study.seeds[:1])]
    for twice in {one for one in made if made.count(one) > 1}:
        raise ValueError(f"study {name} has {twice!r} twice: give its variants names of their own")
    pairs = study.baseline or {}
    for one in {pairs} if isinstance(pairs, str) else {*pairs, *pairs.values()}:
        if one not in made:
            raise ValueError(
                f"study {name}: baseline {one!r} is no variant: choose one of "
                f"{', '.join(sorted(made))}"
            )
    return study


def trials(study: Study, data: str, seeds: Sequence[int] | None = None) -> list[Trial]:
    """All runs, seed by seed, so that pairs are complete as early as can be."""
    return [
        Trial(
            variant=name,
            group=group,
            swept={key: values[key] for key in study.sweep},
            seed=seed,
            settings=_settings(study, name, values, seed, data),
        )
        for seed in seeds or study.seeds
        for name, group, values in _variants(study)
    ]


def _variants(study: Study) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Names, groups and settings; a swept value is part of the name."""
    for name, values in study.variants.items():
        swept = {key: some for key, some in study.sweep.items() if key not in values}
        for chosen in itertools.product(*swept.values()):
            picked = dict(zip(swept, chosen, strict=True))
            label = " ".join([name, *(f"{key}={_word(value)}" for key, value in picked.items())])
            yield label, name, {**values, **picked}


def _word(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if number and float(f"{value:g}") == value else str(value)


def _settings(study: Study, name: str, values: Mapping[str, Any], seed: int, data: str) -> Settings:
    merged = {**study.settings, **values, "seed": seed, "data": data}
    return settings_from(merged, recipe=study.recipe, origin=f"variant {name}")
