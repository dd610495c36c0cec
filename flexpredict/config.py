"""Typed, frozen settings: one flat list of names, the same in YAML, in Python and after `--set`.

A recipe is a YAML file of settings. It may name a `base` recipe to start from and `variants`, each
a few settings more: `paper/ablation-vit-b16@table7-context`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from flexpredict.written import meant, parse_yaml, read_text

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Range = tuple[float, float]
# photos/ is photos
Place = Annotated[str, AfterValidator(lambda place: re.sub(r"(?<=[^/:])/+$", "", place))]


def _sides(size: Any) -> Any:
    """48x96 is a height and a width, as [48, 96] is."""
    said = re.fullmatch(r"(\d+)x(\d+)", size) if isinstance(size, str) else None
    return said.groups() if said else size


ImageSize = Annotated[Positive | tuple[Positive, Positive], BeforeValidator(_sides)]
_SEEDS = 2**63  # what a 64-bit word holds


_NAMES = frozenset({"data", "model", "init", "probe_data"})  # settings that are no numbers
_OF_IJEPA = frozenset({"loss", "target_layers", "low_resolution", "masking"})  # not of mae
# Settings that do not change what is learnt: a run may go on with other values. Some round
# otherwise, and `hold` crops a large JPEG at full size instead of decoding it smaller.
WITHOUT_EFFECT = frozenset(
    {
        "data",
        "workers",
        "hold",
        "compile",
        "graph",
        "log_every",
        "gauge_every",
        "checkpoint_every",
        "keep_checkpoints",
        "probe_data",
        "probe_every",
        "most_rejected",
    }
)

# Settings that are younger than some runs: where nobody uses them, those runs keep their digest.
_YOUNGER = frozenset({"init", "init_predictor", "noise_rank", "noise_std_final"})


class Settings(BaseModel):
    """Everything a pretraining run depends on, besides the images."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # What is learnt: these change results.
    model: str = "vit_small"
    patch_size: Positive = 16
    image_size: ImageSize = 224
    in_channels: Positive = 3
    mean: tuple[float, ...] | None = None  # None: ImageNet's for 3 channels
    std: tuple[float, ...] | None = None
    objective: Literal["ijepa", "mae"] = "ijepa"
    loss: Literal["smooth_l1", "mse"] = "smooth_l1"
    target_layers: Positive = 1
    low_resolution: Literal["bilinear", "max"] | None = None  # Table 8
    predictor_dim: Positive | None = None  # None: what goes with the model
    predictor_depth: Positive | None = None
    predictor_heads: Positive | None = None  # None: as many as the encoder
    depth_scaled_init: bool = False
    init: str | None = None  # a run folder, imported or not, whose weights are the first ones
    init_predictor: bool = True  # its predictor too, where it has one

    # From `diagonal` on: noise beyond the paper (docs/beyond.md).
    positions: Literal[
        "sincos", "learned", "stop", "fixed", "diagonal", "low-rank", "coordinates", "scaled",
        "conditioned", "annealed", "appearance",
    ] = "stop"  # fmt: skip
    noise_std: Annotated[float, Field(ge=0)] = 0.25  # a standard deviation, always
    noise_rank: Positive = 16  # of `low-rank`
    noise_std_final: Annotated[float, Field(ge=0)] = 0.0  # of `annealed`: noise_std at the end
    noise_on: Literal["masked", "context", "both"] = "masked"
    tied: bool = True
    form: Literal["paper", "released"] = "paper"
    projection_norm: bool = False
    projection_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    projection_l1: Annotated[float, Field(ge=0)] = 0.0
    projection_l2: Annotated[float, Field(ge=0)] = 0.0

    masking: Literal["paper", "even", "random"] = "even"
    chunk_size: Positive = 64  # images that share a block size and a context length under `paper`
    target_blocks: Positive = 4
    target_scale: Range = (0.15, 0.2)
    target_aspect: Range = (0.75, 1.5)
    context_scale: Range = (0.85, 1.0)
    min_context: Annotated[int, Field(ge=0)] = 10  # `paper`: more than this many patches
    mask_ratio: Share = 0.75  # `random`

    data: Place | None = None  # where the images come from, if not said otherwise
    augment: Literal["crop", "crop-flip", "crop-flip-gray-blur"] = "crop"
    crop_scale: Range = (0.3, 1.0)

    batch_size: Positive = 256  # over all devices
    epochs: Annotated[float, Field(gt=0)] | None = 100
    steps: Positive | None = None
    lr: Annotated[float, Field(gt=0)] = 1e-3
    lr_start: Annotated[float, Field(ge=0)] = 2e-4
    lr_final: Annotated[float, Field(ge=0)] = 1e-6
    warmup: Share = 0.1  # share of the run
    freeze_after: Share = 1.0  # share of the run after which lr and weight decay stand still
    weight_decay: Annotated[float, Field(ge=0)] = 0.04
    weight_decay_final: Annotated[float, Field(ge=0)] = 0.4
    betas: Range = (0.9, 0.999)
    ema: Share = 0.996
    ema_final: Share = 1.0
    clip_grad: Annotated[float, Field(ge=0)] = 0.0  # 0: off
    # Set: lr, lr_start and lr_final are meant for this batch size and are scaled in proportion,
    # and ema is raised to the same ratio. None: they are used as they stand.
    reference_batch_size: Positive | None = None
    seed: Annotated[int, Field(gt=-_SEEDS, lt=_SEEDS)] = 0

    # How it is computed.
    # float8: bfloat16 with the encoders' products in float8, which rounds more.
    precision: Literal["auto", "float32", "bfloat16", "float16", "float8"] = "auto"
    accumulate: Positive = 1  # micro-batches per step
    grad_checkpointing: bool = False
    compile: bool | None = None  # None: on GPUs
    graph: bool | None = None  # CUDA graphs; None: for small models
    workers: Annotated[int, Field(ge=0)] | None = None  # None: as many as there are cores, up to 8
    # Where images are kept decoded; auto: on the GPU, else in memory, where a set fits.
    hold: Literal["auto", "none", "ram", "device"] = "auto"

    # What is written.
    log_every: Positive = 50
    gauge_every: Positive | None = None  # steps; None: by the length of the run, docs/health.md
    checkpoint_every: Positive = 1000
    keep_checkpoints: Positive = 2
    most_rejected: Share = 0.5  # of the images: with more that cannot be used, the run stops
    probe_data: Place | None = None  # labelled images for nearest neighbours and ridge on the way
    probe_every: Annotated[float, Field(gt=0)] = 10  # epochs

    @model_validator(mode="before")
    @classmethod
    def _masks_of_the_objective(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("objective") == "mae":
            return {"masking": "random"} | values
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.objective == "mae":
            for name in sorted(_OF_IJEPA - {"masking"}):
                if not self._is_default(name):
                    raise ValueError(f"{name} is a setting of objective=ijepa, not of mae")
        for name, group, value in (
            ("noise_rank", "positions", "low-rank"),
            ("noise_std_final", "positions", "annealed"),
            ("mask_ratio", "masking", "random"),
            ("min_context", "masking", "paper"),
        ):
            if (other := getattr(self, group)) != value and not self._is_default(name):
                raise ValueError(f"{name} is a setting of {group}={value}, not of {other}")
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(
                f"crop_scale={self.crop_scale} does not fit: shares of an image, as [0.3, 1]"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas} does not fit: each from 0 up to below 1")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ValueError(f"std={self.std} does not fit: images are divided by it")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("set either epochs or steps, not both and not neither")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into accumulate={self.accumulate} "
                f"parts"
            )
        return self

    def _is_default(self, name: str) -> bool:
        return bool(getattr(self, name) == type(self).model_fields[name].default)

    @property
    def stochastic(self) -> bool:
        """Whether positions have noise, if noise_std is not 0."""
        return self.positions not in ("sincos", "learned")

    @property
    def batch_ratio(self) -> float:
        """How far the batch is from the one the learning rates are meant for."""
        return self.batch_size / (self.reference_batch_size or self.batch_size)

    def digest(self) -> str:
        """A short name for the settings that change results."""
        unused = {name for name in _YOUNGER if self._is_default(name)}
        text = self.model_dump_json(exclude=unused | WITHOUT_EFFECT)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def other_than(self, before: Self, free: Set[str]) -> str | None:
        """The first setting that was another one, as `name=before, not now`, but for some."""
        old = before.model_dump()
        for name, value in self.model_dump().items():
            if name not in free and old[name] != value:
                return f"{name}={old[name]}, not {value}"
        return None

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def settings_from(
    values: Mapping[str, Any],
    *,
    recipe: str | None = None,
    under: Mapping[str, Any] | None = None,
    origin: str = "the settings",
) -> Settings:
    """Settings of a recipe with some values replaced; one clear sentence when they do not fit.

    under: values to start from instead of a recipe.
    """
    merged = _merge(read_recipe(recipe) if recipe else under or {}, values)
    _check_names(merged, origin)
    try:
        return Settings(**{key: _typed(key, value) for key, value in merged.items()})
    except ValidationError as error:
        raise ValueError(f"{origin}: {first_sentence(error)}") from None


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings of pretraining as `key=value`: `lr=1e-3`, `image_size=[96,64]`, `steps=null`."""
    values = parse_pairs(pairs, _NAMES)
    _check_names(values, "--set")
    return values


def parse_pairs(pairs: Iterable[str], names: Set[str] = frozenset()) -> dict[str, Any]:
    """`key=value` strings, values read as YAML, but for names: a folder may be called 2024_11."""
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes key=value, not {pair!r}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"--set {pair}: the value is not readable as YAML") from None
        plain = key.strip() in names and not isinstance(value, str | None)
        values[key.strip()] = text.strip() if plain else value
    return values


def read_settings(path: Path) -> Settings:
    """The settings of a run, from its config.yaml."""
    values = _read_yaml(read_text(path), str(path))
    if not values:
        raise ValueError(f"{path} is empty: expected the settings of a run")
    return settings_from(values, origin=str(path))


def recipe_names() -> list[str]:
    """All recipes that come with the package, without their variants."""
    root = resources.files("flexpredict") / "recipes"
    with resources.as_file(root) as folder:
        return sorted(
            path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
        )


def recipe_text(name: str) -> str:
    """A recipe as it is written: one that comes with the package, or the path of a YAML file."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"recipe {name}: no such file")
        return read_text(path)
    if name not in (known := recipe_names()):
        hint = meant(name, known, f"choose one of {', '.join(known)}")
        raise ValueError(f"there is no recipe {name!r}: {hint}")
    return (resources.files("flexpredict") / "recipes" / f"{name}.yaml").read_text("utf-8")


def recipe_variants(name: str) -> dict[str, dict[str, Any]]:
    """What each variant of a recipe sets."""
    return _parts_of(name)[1]


def read_recipe(name: str, above: Sequence[str] = ()) -> dict[str, Any]:
    """The values of `recipe` or `recipe@variant`, those of its base included.

    above: the recipes that this one is a base of.
    """
    name, _, variant = name.partition("@")
    if name in above:
        raise ValueError(f"recipe {name} is a base of itself: {' → '.join((*above, name))}")
    values, variants = _parts_of(name)
    base = values.pop("base", None)
    merged = _merge(read_recipe(base, (*above, name)) if base else {}, values)
    if variant:
        if variant not in variants:
            known = ", ".join(variants) or "none"
            raise ValueError(f"recipe {name} has no variant {variant!r}: it has {known}")
        merged = _merge(merged, variants[variant])
    return merged


def _parts_of(name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values of a recipe as it is written, its base among them, and its variants."""
    values = _read_yaml(recipe_text(name), f"recipe {name}")
    if not isinstance(base := values.get("base"), str | None):
        raise ValueError(f"recipe {name}: base is {base!r}, expected the name of a recipe")
    variants = values.pop("variants", None) or {}
    if not (isinstance(variants, dict) and all(isinstance(x, dict) for x in variants.values())):
        raise ValueError(
            f"recipe {name}: expected variants as lines of `name: {{setting: value, …}}`"
        )
    return values, {str(variant): settings for variant, settings in variants.items()}


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Later values win; setting epochs unsets steps and the other way round.

    Another objective leaves behind what was set for the one before.
    """
    merged = dict(under)
    if over.get("objective") not in (None, under.get("objective", "ijepa")):
        merged = {key: value for key, value in under.items() if key not in _OF_IJEPA}
    for key, other in (("epochs", "steps"), ("steps", "epochs")):
        if over.get(key) is not None and other not in over:
            merged[other] = None
    return merged | dict(over)


def _read_yaml(text: str, origin: str) -> dict[str, Any]:
    values = parse_yaml(text, origin) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{origin} holds no settings: expected lines of `name: value`")
    return {str(key): value for key, value in values.items()}


def _check_names(values: Iterable[str], origin: str) -> None:
    for key in values:
        if key not in Settings.model_fields:
            hint = meant(key, Settings.model_fields, "docs/settings.md lists them")
            raise ValueError(f"{origin}: there is no setting {key!r}: {hint}")


def _typed(key: str, value: Any) -> Any:
    """What a person means: YAML reads 1e-3 as a string and a folder called 2024 as a number."""
    if key in _NAMES:
        return None if value is None else str(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def first_sentence(error: ValidationError) -> str:
    """What is wrong, of the first thing that is."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][:1])
    if first["type"] == "extra_forbidden":
        return f"there is no {'.'.join(map(str, first['loc']))!r}"
    if first["type"] == "missing":
        return f"{'.'.join(map(str, first['loc']))} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{where}={first['input']!r} does not fit: {first['msg'][0].lower()}{first['msg'][1:]}"
