"""Several methods on several metrics: table, ranks, paired tests, and how the metrics trade off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.attribution.errors import AttributionError
from assay.attribution.metrics.result import MetricResult, PairedTest, holm, paired_p_values, paired_test


@dataclass(frozen=True)
class Comparison:
    """Results by method and metric (or by method and kind of benchmark).

    Examples
    --------
    >>> from assay.attribution.metrics.result import from_rows
    >>> a, b = (from_rows("lds", [v, v + 0.1, v - 0.1], 0.0, 1.0) for v in (0.5, 0.2))
    >>> found = compare({"influence": {"lds": a}, "dot": {"lds": b}})
    >>> found.mean_rank()
    {'influence': 1.0, 'dot': 2.0}
    >>> found.winners()
    {'lds': 'influence'}
    """

    results: Mapping[str, Mapping[str, MetricResult]]
    _tests: dict[tuple[str, str, str], PairedTest] = field(default_factory=dict, repr=False, compare=False)
    _adjusted: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return list(self.results)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any method has."""
        return list(dict.fromkeys(m for row in self.results.values() for m in row))

    def ranks(self) -> dict[str, dict[str, float]]:
        """Rank of each method on each metric (1 is best, ties share); metrics that a method lacks are left out."""
        from scipy.stats import rankdata

        out: dict[str, dict[str, float]] = {method: {} for method in self.results}
        for metric in self.metrics:
            have = [m for m in self.results if metric in self.results[m]]
            scores = np.array([self.results[m][metric].score for m in have])
            low = self.results[have[0]][metric].direction == "lower"
            for method, rank in zip(have, rankdata(scores if low else -scores), strict=True):
                out[method][metric] = float(rank)
        return out

    def mean_rank(self) -> dict[str, float]:
        """Mean rank of each method over the metrics that it has, best first."""
        means = {method: float(np.mean(list(row.values()))) for method, row in self.ranks().items() if row}
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def best(self, metric: str) -> list[str]:
        """The methods with the best score of a metric (several where scores are equal)."""
        ranks = {method: row[metric] for method, row in self.ranks().items() if metric in row}
        return [method for method, rank in ranks.items() if rank == min(ranks.values())]

    def winners(self) -> dict[str, str]:
        """The best method of each metric (the first where scores are equal)."""
        return {metric: self.best(metric)[0] for metric in self.metrics}

    def test(self, metric: str, first: str, second: str) -> PairedTest:
        """Paired bootstrap of two methods on the same test rows."""
        for method in (first, second):
            if metric not in self.results.get(method, {}):
                raise AttributionError(f"{method!r} has no result for {metric!r}")
        key = (metric, first, second)
        if key not in self._tests:
            self._tests[key] = paired_test(self.results[first][metric], self.results[second][metric])
        return self._tests[key]

    def adjusted(self, metric: str, first: str, second: str) -> float:
        """p-value of a pair on a metric, adjusted for all pairs of methods that have it (Holm); NaN where the two
        cannot be paired.

        The best method is found on the same rows on which it is tested, so that its pairs alone would not do.
        """
        if metric not in self._adjusted:
            have = [m for m in self.results if metric in self.results[m]]
            pairs = max(1, len(have) * (len(have) - 1) // 2)
            found = paired_p_values([self.results[m][metric] for m in have], max(10_000, 40 * pairs))
            names = [(have[i], have[j]) for i, j in found]
            self._adjusted[metric] = dict(zip(names, map(float, holm(list(found.values()))), strict=True))
        known = self._adjusted[metric]
        return known.get((first, second), known.get((second, first), float("nan")))

    def indistinct(self, metric: str, level: float = 0.05) -> list[str]:
        """Methods that cannot be told apart from the best of a metric (the best first).

        The chance that any method as good as the best is missing here is at most ``level``, whatever their number.
        """
        best = self.winners()[metric]
        others = [m for m in self.results if m != best and metric in self.results[m]]
        return [best, *(m for m in others if not self.adjusted(metric, best, m) <= level)]

    def table(self, value: str = "score") -> str:
        """A Markdown table, methods by mean rank; ``value`` is score, normalized or ci."""
        means, best = self.mean_rank(), {metric: self.best(metric) for metric in self.metrics}
        lines = [
            "| method | " + " | ".join(self.metrics) + " | mean rank |",
            "|---" * (len(self.metrics) + 2) + "|",
        ]
        for method in means:
            cells = []
            for metric in self.metrics:
                result = self.results[method].get(metric)
                if result is None:
                    cells.append("-")
                    continue
                shown = result.normalized if value == "normalized" else result.score
                text = f"{shown:.3f}"
                if value == "ci":
                    text += f" [{result.ci[0]:.3f}, {result.ci[1]:.3f}]"
                cells.append(f"**{text}**" if method in best[metric] else text)
            lines.append(f"| {method} | " + " | ".join(cells) + f" | {means[method]:.1f} |")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Scores, intervals, levels and p-values against the best, as JSON."""
        winners = self.winners()
        out: dict[str, Any] = {}
        for method, row in self.results.items():
            out[method] = {}
            for metric, result in row.items():
                best = winners[metric]
                p = None if method == best else self.adjusted(metric, best, method)
                out[method][metric] = {
                    **result.to_json(),
                    "best": method == best,
                    "adjusted_p_value_against_best": None if p is None or np.isnan(p) else p,
                }
        return json.dumps(out, indent=1)

    def plot(self, **options: Any) -> Any:
        """Heat map of normalised scores (see `assay.attribution.plots.plot_comparison`)."""
        from assay.attribution.plots import plot_comparison

        return plot_comparison(self, **options)


def compare(results: Mapping[str, Mapping[str, MetricResult]]) -> Comparison:
    """A `Comparison` of ``{method: {metric: result}}``.

    Raises
    ------
    AttributionError
        If there is no method or no metric.
    """
    if not results or not any(results.values()):
        raise AttributionError("there is nothing to compare: no method has a result")
    return Comparison(results)
