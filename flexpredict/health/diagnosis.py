"""Is a run well? A verdict on the lines it logged, with the evidence and the usual remedy.

A rule compares a few numbers with thresholds; rules are tried from the worst ailment to the
mildest, and the first that holds is the verdict. docs/health.md explains them and says how often
they are right. The thresholds were fitted on runs that were made to fail (benchmarks/ailments.py).
"""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import yaml

from flexpredict.config import Settings

GAUGED = "rankme_target"  # a line that has it has all gauges
FEWEST = 5  # lines on which a verdict is given, gauged ones for what only these tell
_RECENT = 3  # lines whose median is what a gauge says now

Line = Mapping[str, Any]
Measures = dict[str, float]


class Condition(NamedTuple):
    """A measure that lies on the wrong side of the threshold of its name."""

    measure: str
    above: bool
    words: str  # with {value}


class Rule(NamedTuple):
    """A verdict that is due where all its conditions hold."""

    verdict: str
    conditions: tuple[Condition, ...]
    sentence: str
    remedy: str
    of_mae: str | None = None  # another remedy, where there is no average


def _above(measure: str, words: str) -> Condition:
    return Condition(measure, True, words)


def _below(measure: str, words: str) -> Condition:
    return Condition(measure, False, words)


_NOISE_LOST = _below("noise_kept", "the noise on positions is at {value} of its start")
_LOWER_RATE = "Start again with a lower lr or a longer warmup."
_COLLAPSE = "Raise ema, lower lr, and look whether the images differ from each other."
_OF_MAE = "Lower lr, and look whether the images differ from each other, and within themselves."

RULES = (
    Rule(
        "exploding",
        (_above("broken", "the loss is no longer a finite number"),),
        "the loss is not finite",
        _LOWER_RATE,
    ),
    Rule(
        "exploding",
        (_above("growth", "A has been {value} times as large as at its start"),),
        "the weights grow out of bounds",
        _LOWER_RATE,
    ),
    Rule(
        "collapsed",
        (_below("loss_kept", "the loss is at {value} of its start: the targets hold no news"),),
        "what is to be predicted has become trivial",
        _COLLAPSE,
        _OF_MAE,
    ),
    Rule(
        "collapsed",
        (_below("spread_kept", "features differ between images by {value} of what they did"),),
        "all images get almost the same features",
        _COLLAPSE,
        _OF_MAE,
    ),
    Rule(
        "drowned",
        (_above("noise_over_signal", "the noise is {value} times the signal A s"),),
        "the noise is louder than what the context says",
        "Lower noise_std.",
    ),
    Rule(
        "collapsing",
        (_below("apart", "the distance between the encoders has always been {value}"),),
        "the target encoder is the context encoder itself: nothing holds the targets still",
        "Raise ema.",
    ),
    Rule(
        "collapsing",
        (_below("rank_kept", "the rank of the features is at {value} of its best"),),
        "the features lose their dimensions",
        _COLLAPSE,
        _OF_MAE,
    ),
    Rule(
        "escaping",
        (
            _NOISE_LOST,
            _above("gamma_growth", "the encoder's last scale is at {value} of its start"),
        ),
        "the encoder's last scale grows as A shrinks: the context survives and the noise does not",
        "Set projection_norm=true, or lower weight_decay.",
    ),
    Rule(
        "degenerate",
        (_NOISE_LOST,),
        "the noise is being silenced: StoP turns into deterministic positions",
        "Lower weight_decay, projection_l1 and projection_l2; leave tied as it is by default.",
    ),
    Rule(
        "starved",
        (_above("data_wait", "{value} of the time is spent waiting for images"),),
        "training waits for images",
        "Raise workers, set hold=ram, or pack the images by flexpredict data shard.",
    ),
    Rule(
        "stalled",
        (_below("movement", "rank, spread and any probe moved by {value} in the last half"),),
        "nothing moves any more",
        "Raise lr, or end the run here; look whether ema is 1. After some dozens of steps nothing "
        "else is to be expected: train for more.",
    ),
    Rule(
        "under-trained",
        (_above("lag", "the target encoder is {value} as far behind as it ever was"),),
        "the run ended before the target encoder had caught up",
        "Train for more steps (--resume with a larger steps or epochs goes on), or lower ema; "
        "raise lr if it is far too low.",
    ),
)


AILMENTS = frozenset(rule.verdict for rule in RULES)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """ailing: whether a rule struck, so that `verdict` names an ailment.

    unjudged: ailments that the lines say nothing about, as those of older runs.
    """

    verdict: str
    ailing: bool
    sentence: str
    evidence: list[str]
    remedy: str
    unjudged: list[str]
    measures: Measures

    @property
    def sentences(self) -> list[str]:
        """All of it in plain words, the verdict first."""
        said = [f"{self.sentence}."]
        if self.evidence:
            said.append(f"Seen: {'; '.join(self.evidence)}.")
        if self.remedy:
            said.append(f"What usually helps: {self.remedy}")
        if self.unjudged and self.verdict != "unknown":
            said.append(f"Its metrics do not tell whether it is {', '.join(self.unjudged)}.")
        return said


def diagnose(
    settings: Settings, lines: Sequence[Line], limits: Mapping[str, float] | None = None
) -> Diagnosis:
    """The verdict on a run from its settings and the lines of its metrics.jsonl.

    Most of it needs lines with gauges; of others it takes what they have. limits: other thresholds.
    """
    limits = thresholds() if limits is None else limits
    found = measure(settings, lines)
    unjudged = _unjudged(settings, found)
    for rule in RULES:
        if all(holds(condition, found, limits) for condition in rule.conditions):
            evidence = [_words(c, found, limits) for c in rule.conditions]
            sentence = f"{rule.verdict}: {rule.sentence}"
            remedy = (settings.objective == "mae" and rule.of_mae) or rule.remedy
            return Diagnosis(rule.verdict, True, sentence, evidence, remedy, unjudged, found)
    if "collapsing" in unjudged:
        return Diagnosis("unknown", False, *_too_little(settings, lines), unjudged, found)
    done = found["progress"]
    sentence = "healthy" if done >= 1 else f"healthy so far, at {done:.0%} of the run"
    return Diagnosis("healthy", False, sentence, [], "", unjudged, found)


def _too_little(settings: Settings, lines: Sequence[Line]) -> tuple[str, list[str], str]:
    """What is said of a run whose lines tell too little: the verdict, the evidence, the remedy."""
    sentence = "unknown: nothing is seen to be wrong, but its metrics tell too little"
    gauged = sum(GAUGED in line for line in lines)
    if gauged >= FEWEST or not lines:
        return sentence, [], ""
    seen = [f"{gauged} of its lines have gauges, and it takes {FEWEST}"]
    if not gauged:
        return sentence, seen, ""
    done = progress_of(settings, lines[-1]) >= 1
    remedy = "Set gauge_every lower for runs so short."
    if not done:
        remedy = "Wait until it is gauged again, or go on with --resume where it was stopped."
    return sentence, seen, remedy


def measure(settings: Settings, lines: Sequence[Line]) -> Measures:
    """The numbers that rules look at; those that the lines do not tell are missing."""
    found: Measures = {}
    if lines:
        found["broken"] = float(lines[-1]["loss"] is None)
        found["progress"] = progress_of(settings, lines[-1])
    every = [line for line in lines if line["loss"] is not None]
    if len(every) < FEWEST:
        return found
    sizes, waits = series(every, "norm_A"), series(every, "data_wait")
    if sizes and sizes[0]:
        found["growth"] = max(sizes) / sizes[0]
    if waits:
        found["data_wait"] = statistics.median(waits[-_RECENT:])
    gauged = [line for line in every if GAUGED in line]
    lines = gauged or every
    if len(lines) < FEWEST:
        return found

    def now(name: str) -> float | None:
        values = series(lines, name)[-_RECENT:]
        return statistics.median(values) if values else None

    def kept(name: str) -> float | None:
        """Now, as a share of the start."""
        values, latest = series(lines, name), now(name)
        return latest / values[0] if latest is not None and values[0] else None

    def of_best(name: str) -> float | None:
        """Now, as a share of the largest value."""
        values, latest = series(lines, name), now(name)
        return latest / max(values) if latest is not None and max(values) > 0 else None

    numbers = {
        "loss_kept": kept("fixed_loss" if gauged else "loss"),
        "spread_kept": kept("spread_target"),
        "apart": max(series(lines, "encoder_distance"), default=None),
        "rank_kept": of_best("rankme_target"),
        "noise_over_signal": now("noise_over_signal"),
        # Noise that is meant to end is not lost.
        "noise_kept": kept("noise_over_position") if settings.positions != "annealed" else None,
        # Of noise with a matrix of its own, γ makes up for nothing.
        "gamma_growth": kept("norm_gamma") if settings.tied else None,
        "movement": _movement(lines),
        "lag": of_best("encoder_distance") if found["progress"] >= 1 else None,
    }
    return found | {name: value for name, value in numbers.items() if value is not None}


@functools.cache
def thresholds() -> Mapping[str, float]:
    """By the name of what they are compared with."""
    text = (resources.files("flexpredict.health") / "thresholds.yaml").read_text("utf-8")
    return dict(yaml.safe_load(text))


def series(lines: Sequence[Line], name: str) -> list[float]:
    found = (line.get(name) for line in lines)
    return [value for value in found if isinstance(value, int | float)]


def _movement(lines: Sequence[Line]) -> float | None:
    """The largest of the relative ranges of what the target encoder gives, over the last half."""
    ranges = []
    for name in ("rankme_target", "spread_target", "knn"):
        values = series(lines[len(lines) // 2 :], name)
        if len(values) > 1 and (top := max(values)) > 0:
            ranges.append((top - min(values)) / top)
    return max(ranges, default=None)


def progress_of(settings: Settings, line: Line) -> float:
    """The share of the run that is done."""
    steps = steps_of(settings, line)
    return line["step"] / steps if steps else 0.0


def steps_of(settings: Settings, line: Line) -> int | None:
    """How many steps were asked for; of a run in epochs, by what a line says of its epoch."""
    if settings.steps is not None:
        return settings.steps
    assert settings.epochs is not None
    if not line.get("epoch"):  # so small a share that it was rounded to nothing
        return None
    return max(1, round(settings.epochs * round(line["step"] / line["epoch"])))


def holds(condition: Condition, found: Measures, limits: Mapping[str, float]) -> bool:
    value, limit = found.get(condition.measure), limits[condition.measure]
    if value is None:
        return False
    return value > limit if condition.above else value < limit


def _words(condition: Condition, found: Measures, limits: Mapping[str, float]) -> str:
    value, limit = found[condition.measure], limits[condition.measure]
    if condition.measure == "broken":
        return condition.words
    return f"{condition.words.format(value=f'{value:.3g}')} (limit {limit:.3g})"


def _unjudged(settings: Settings, found: Measures) -> list[str]:
    """Verdicts no rule of which could be looked at, though they may befall such a run."""
    spared: set[str] = set()
    if not settings.stochastic or settings.noise_std == 0:
        spared |= {"drowned", "escaping", "degenerate"}
    if settings.positions == "annealed":
        spared |= {"escaping", "degenerate"}
    if not settings.tied:
        spared.add("escaping")
    if found.get("progress", 0.0) < 1:
        spared.add("under-trained")
    seen = {r.verdict for r in RULES if all(c.measure in found for c in r.conditions)}
    return list(dict.fromkeys(r.verdict for r in RULES if r.verdict not in seen | spared))
