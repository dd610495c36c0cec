"""What a study found: means, deviations, and differences within pairs with their intervals."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flexpredict.health.diagnosis import AILMENTS

# Student's 97.5 % quantile for 1, 2, … degrees of freedom; beyond them the last, a little wide.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Line = Mapping[str, Any]  # of results.jsonl: variant, seed, found, …
Baseline = str | Mapping[str, str] | None  # of all others, or of each variant that has one


class Estimate(NamedTuple):
    """Of a mean over seeds."""

    mean: float
    std: float | None  # None where there is one seed
    seeds: int

    @property
    def half(self) -> float | None:
        """Half the 95 % interval of the mean."""
        if self.std is None:
            return None
        degrees = min(self.seeds - 1, len(_STUDENT))
        return _STUDENT[degrees - 1] * self.std / self.seeds**0.5


def estimate(values: Sequence[float]) -> Estimate:
    std = statistics.stdev(values) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), std, len(values))


def values_of(lines: Sequence[Line], variant: str, column: str) -> dict[int, float]:
    """By seed."""
    return {
        line["seed"]: line["found"][column]
        for line in lines
        if line["variant"] == variant and line["found"].get(column) is not None
    }


def differences(lines: Sequence[Line], variant: str, baseline: str, column: str) -> list[float]:
    """Within pairs that share a seed, by seed."""
    ours, theirs = (values_of(lines, name, column) for name in (variant, baseline))
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def compared(lines: Sequence[Line], baseline: Baseline) -> dict[str, str]:
    """Variants, and the one that each is compared with."""
    variants = dict.fromkeys(line["variant"] for line in lines)
    if isinstance(baseline, str):
        return {variant: baseline for variant in variants if variant != baseline}
    pairs = baseline or {}
    return {variant: pairs[variant] for variant in variants if variant in pairs}


def summary(lines: Sequence[Line], baseline: Baseline) -> dict[str, dict[str, Any]]:
    """variant -> column -> mean, std, seeds and, against the baseline, difference and interval."""
    found: dict[str, dict[str, Any]] = {}
    against = compared(lines, baseline)
    for variant in dict.fromkeys(line["variant"] for line in lines):
        found[variant] = {}
        for column in columns(lines):
            values = values_of(lines, variant, column)
            if not values:
                continue
            cell: dict[str, Any] = estimate(list(values.values()))._asdict()
            if variant in against:
                pairs = differences(lines, variant, against[variant], column)
                if pairs:
                    between = estimate(pairs)
                    cell |= {"difference": between.mean, "pairs": between.seeds}
                    cell["interval"] = None
                    if (half := between.half) is not None:
                        cell["interval"] = [between.mean - half, between.mean + half]
            found[variant][column] = cell
    return found


def columns(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(column for line in lines for column in line["found"]))


def markdown(lines: Sequence[Line], baseline: Baseline) -> str:
    """Two tables: means with deviations over seeds, and differences from the baseline."""
    names = columns(lines)
    if not names:
        return "Nothing was measured.\n"
    text = _head("seeds", names)
    for variant, cells in summary(lines, None).items():
        seeds = sum(line["variant"] == variant for line in lines)
        row = [mean_text(cells.get(name), seeds) for name in names]
        text.append(f"| {variant} | {seeds} | {' | '.join(row)} |")
    parts = ["\n".join(text) + "\n"]
    if compared(lines, baseline):
        one = f" from {baseline}" if isinstance(baseline, str) else ""
        parts.append(f"Differences{one} within pairs, with 95 % intervals:\n")
        parts.append(markdown_differences(lines, baseline))
    return "\n".join(parts)


def markdown_differences(lines: Sequence[Line], baseline: Baseline) -> str:
    """The second of them."""
    names, found = columns(lines), summary(lines, baseline)
    text = _head("pairs", names)
    for variant, other in compared(lines, baseline).items():
        cells = found[variant]
        pairs = max((cell.get("pairs", 0) for cell in cells.values()), default=0)
        row = [difference_text(cells.get(name), pairs) for name in names]
        label = variant if isinstance(baseline, str) else f"{variant} − {other}"
        text.append(f"| {label} | {pairs} | {' | '.join(row)} |")
    return "\n".join(text) + "\n"


def _head(counted: str, names: Sequence[str]) -> list[str]:
    return [f"| | {counted} | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]


def ill_text(lines: Sequence[Line]) -> str:
    """A sentence on the runs that the doctor calls ill, or nothing."""
    found = [
        f"{line['variant']}, seed {line['seed']}, is {line['verdict']}"
        for line in lines
        if line.get("verdict") in AILMENTS
    ]
    return f"\nNot all runs are healthy: {'; '.join(found)}.\n" if found else ""


def failed_text(failed: Mapping[str, str]) -> str:
    """A sentence on the trials that failed, by their names, or nothing."""
    said = "; ".join(f"{name} ({' '.join(why.split())})" for name, why in failed.items())
    return f"\nFailed, and not in the table: {said}.\n" if said else ""


def mean_text(cell: Mapping[str, Any] | None, seeds: int | None = None) -> str:
    """Of a cell of the summary; how many it is of, where that is not all the seeds."""
    if cell is None:
        return "–"
    shown = f"{cell['mean']:.4g}" + ("" if cell["std"] is None else f" ± {cell['std']:.2g}")
    return shown + _fewer(cell["seeds"], seeds)


def difference_text(cell: Mapping[str, Any] | None, pairs: int | None = None) -> str:
    """Of a cell of the summary, with its interval; how many it is of, where not all the pairs."""
    if cell is None or "difference" not in cell:
        return "–"
    shown, fewer = f"{cell['difference']:+.3g}", _fewer(cell["pairs"], pairs)
    if cell["interval"] is None:
        return shown + fewer
    low, high = (f"{end:+.3g}" for end in cell["interval"])
    return (f"{shown} (in all pairs)" if low == high else f"{shown} [{low}, {high}]") + fewer


def _fewer(count: int, most: int | None) -> str:
    return "" if most in (None, count) else f" (n = {count})"
