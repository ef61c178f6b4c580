"""Charts of the report page, as Vega-Lite specifications made with Altair.

Colours are CSS variables of the page, so that light, dark and print need no second drawing. Names come from users: they
stand in data and in domains only, never in field names or expressions, which Vega would interpret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.report.tables import metric_heading

if TYPE_CHECKING:
    from assay.core.benchmark import Metric
    from assay.core.results.outcomes import Curves, Leaderboard, LeaderboardRow, Ranks

Spec = dict[str, Any]

MAX_METHODS = 40
MAX_LINES = 10
MAX_DOTS = 1500
RULER = "critical difference\u200b"  # a row of the rank plot; no method is named with this invisible character
_STATES = {
    "first, or not told apart from it": "var(--accent)",
    "told apart from the first": "var(--quiet)",
    "too few pairs to tell": "var(--unsure)",
}


def number(value: float, digits: int = 6) -> float | None:
    """A number for JSON, shortened; None for NaN and infinities.

    >>> number(0.123456789), number(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def leaderboard_chart(board: Leaderboard, dots: Sequence[tuple[str, float]] = ()) -> Spec:
    """Means as dots within their intervals, best at the top; ``dots`` are single runs (method, value) behind them."""
    import altair as alt

    rows = [row for row in board.rows if row.rank is not None][:MAX_METHODS]
    order = [row.method for row in rows]
    values = [_point(row) for row in rows]
    y = alt.Y("method:N", scale=alt.Scale(domain=order), title=None)
    x_title = metric_heading(board.metric)
    colour = _state_colour(values)
    layers = [
        alt.Chart(alt.Data(values=[v for v in values if v["low"] is not None]))
        .mark_rule(strokeWidth=2)
        .encode(y=y, x=alt.X("low:Q", title=x_title, scale=alt.Scale(zero=False)), x2="high:Q", color=colour),
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(y=y, x=alt.X("mean:Q", title=x_title), color=colour, tooltip=_tooltip(board.metric)),
    ]
    shown = [{"method": m, "value": number(v)} for m, v in dots if m in set(order)][:MAX_DOTS]
    if shown:
        layers.insert(
            0,
            alt.Chart(alt.Data(values=shown))
            .mark_tick(thickness=1.5, size=9, color="var(--muted)", opacity=0.45)
            .encode(y=y, x=alt.X("value:Q", title=x_title)),
        )
    return _spec(alt.layer(*layers).properties(width="container", height=26 * len(rows)))


def rank_chart(ranks: Ranks) -> Spec:
    """Mean ranks, best at the top; bars at the right join what cannot be told apart; a ruler is the distance."""
    import altair as alt

    keep = ranks.methods[:MAX_METHODS]
    k = len(ranks.methods)
    lanes = [[m for m in clique if m in set(keep)] for clique in ranks.cliques]
    lanes = [clique for clique in lanes if len(clique) > 1]
    step = max(0.12, 0.03 * k)
    right = k + 0.35 + step * (len(lanes) + 1)
    y = alt.Y("method:N", scale=alt.Scale(domain=[RULER, *keep]), title=None)
    ticks = sorted({round(1 + i * (k - 1) / min(k - 1, 10)) for i in range(min(k - 1, 10) + 1)})
    x = alt.X(
        "rank:Q", title="mean rank over tasks (1 is best)", axis=alt.Axis(values=ticks, format="d"),
        scale=alt.Scale(domain=[0.8, right], nice=False, zero=False),
    )  # fmt: skip
    points = [{"method": m, "rank": number(r), "text": f"{r:.2f}"} for m, r in zip(keep, ranks.mean_ranks)]
    end = min(1 + ranks.critical_difference, right)
    ruler = {"method": RULER, "rank": 1, "end": number(end), "text": f"{ranks.critical_difference:.2f}"}
    bars = [
        {"method": clique[0], "last": clique[-1], "rank": number(k + 0.35 + step * (i + 1)), "names": ", ".join(clique)}
        for i, clique in enumerate(lanes)
    ]
    base = alt.Chart(alt.Data(values=points))
    rule = alt.Chart(alt.Data(values=[ruler]))
    layers = [
        rule.mark_rule(strokeWidth=4, color="var(--muted)").encode(y=y, x=x, x2="end:Q"),
        rule.mark_text(align="left", dx=6, color="var(--muted)").encode(y=y, x="end:Q", text="text:N"),
        base.mark_point(filled=True, size=80, opacity=1, color="var(--accent)").encode(y=y, x=x),
        base.mark_text(align="left", dx=9, color="var(--muted)").encode(y=y, x=x, text="text:N"),
    ]
    if bars:
        layers.append(
            alt.Chart(alt.Data(values=bars))
            .mark_rule(strokeWidth=5, strokeCap="round", color="var(--ink)", opacity=0.75)
            .encode(y=y, y2="last:N", x=x, tooltip=[alt.Tooltip("names:N", title="not told apart")])
        )
    return _spec(alt.layer(*layers).properties(width="container", height=24 * (len(keep) + 1)))


def curve_chart(curves: Curves, methods: Sequence[str], palette: dict[str, str], y_title: str) -> Spec:
    """Mean over seeds as a line, its interval as a band; a click in the legend sets methods off."""
    import altair as alt

    shown = [m for m in methods if m in curves.bands][:MAX_LINES]
    values = [
        {"method": m, "x": number(x), "y": number(y), "low": number(low), "high": number(high)}
        for m in shown
        for band in [curves.bands[m]]
        for x, y, low, high in zip(band.x, band.mean, band.low, band.high)
    ]
    picked = alt.selection_point(fields=["method"], bind="legend")
    colour = alt.Color(
        "method:N", scale=alt.Scale(domain=shown, range=[palette[m] for m in shown]), sort=shown,
        legend=alt.Legend(
            title=None, orient="top", columns=4, labelLimit=150,
            symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3,
        ),
    )  # fmt: skip
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("x:Q", title=curves.x_label, scale=alt.Scale(nice=False, zero=False)), color=colour
    )
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False))
    band = base.mark_area(line=False).encode(
        y=alt.Y("low:Q", title=y_title, scale=alt.Scale(zero=False)), y2="high:Q",
        opacity=alt.condition(picked, alt.value(0.16), alt.value(0.03)),
    )  # fmt: skip
    line = base.mark_line(strokeWidth=2).encode(
        y=y, opacity=alt.condition(picked, alt.value(1), alt.value(0.15)),
        tooltip=[alt.Tooltip("method:N"), alt.Tooltip("x:Q", title=curves.x_label), alt.Tooltip("y:Q", title="mean")],
    )  # fmt: skip
    return _spec(alt.layer(band, line.add_params(picked)).properties(width="container", height=300))


def cost_chart(board: Leaderboard) -> Spec:
    """The metric against seconds of a run, with ranks as labels; the line joins methods that no other beats in both."""
    import altair as alt

    rows = [r for r in board.rows if r.rank is not None and math.isfinite(r.wall_seconds)][: 2 * MAX_METHODS]
    values = [_point(r) | {"seconds": number(max(r.wall_seconds, 1e-6)), "place": str(r.rank)} for r in rows]
    front: list[str] = []
    best = -math.inf
    for row in sorted(rows, key=lambda r: (r.wall_seconds, -r.mean if board.metric.higher_is_better else r.mean)):
        signed = row.mean if board.metric.higher_is_better else -row.mean
        if signed > best:
            best = signed
            front.append(row.method)
    x = alt.X(
        "seconds:Q",
        scale=alt.Scale(type="log", nice=False, padding=30),
        title="seconds a run (log scale)",
        axis=alt.Axis(format="~g"),
    )
    y = alt.Y("mean:Q", scale=alt.Scale(zero=False), title=metric_heading(board.metric))
    colour = _state_colour(values)
    layers = [
        alt.Chart(alt.Data(values=[v for v in values if v["method"] in front]))
        .mark_line(interpolate="step-after", color="var(--muted)", strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x=x, y=y),
        alt.Chart(alt.Data(values=[v for v in values if v["low"] is not None]))
        .mark_rule(strokeWidth=1.5)
        .encode(x=x, y=alt.Y("low:Q", title=metric_heading(board.metric)), y2="high:Q", color=colour),
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=x, y=y, color=colour, tooltip=[*_tooltip(board.metric), alt.Tooltip("seconds:Q", format=".3~g")]
        ),
    ]  # fmt: skip
    places = alt.Chart(alt.Data(values=values)).mark_text(dx=9, dy=-8, fontWeight=600, color="var(--ink)")
    layers.append(places.encode(x=x, y=y, text="place:N"))
    return _spec(alt.layer(*layers).properties(width="container", height=300))


def _point(row: LeaderboardRow) -> dict[str, Any]:
    state = list(_STATES)[2 if row.apart is None else int(row.apart)]
    return {
        "method": row.method, "mean": number(row.mean), "low": number(row.low), "high": number(row.high),
        "state": state, "runs": row.runs, "failed": row.failed,
    }  # fmt: skip


def _state_colour(values: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    present = [state for state in _STATES if any(v["state"] == state for v in values)]
    return alt.Color(
        "state:N", scale=alt.Scale(domain=present, range=[_STATES[state] for state in present]),
        legend=alt.Legend(title=None, orient="top", labelLimit=220, symbolType="circle", columns=2),
    )  # fmt: skip


def _tooltip(metric: Metric) -> list[Any]:
    import altair as alt

    show = metric.format if re.fullmatch(r",?\.\d+[fge%]", metric.format) else ".4~g"
    ends = [alt.Tooltip(f"{name}:Q", format=show) for name in ("mean", "low", "high")]
    return [alt.Tooltip("method:N"), *ends, alt.Tooltip("runs:Q"), alt.Tooltip("failed:Q")]


def _spec(chart: Any) -> Spec:
    spec: Spec = chart.to_dict()
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec.pop("$schema", None)  # an address; nothing here is fetched
    spec.pop("config", None)  # the page has its own
    return spec


def palette(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method, the same in all charts of a benchmark."""
    return {method: f"var(--c{i % MAX_LINES})" for i, method in enumerate(methods)}


def dots_of(methods: Sequence[str], codes: np.ndarray, values: np.ndarray) -> list[tuple[str, float]]:
    """Single values for `leaderboard_chart`, spread evenly when there are too many."""
    there = np.flatnonzero(~np.isnan(values))
    if len(there) > MAX_DOTS:
        there = there[np.linspace(0, len(there) - 1, MAX_DOTS).astype(int)]
    return [(methods[codes[i]], float(values[i])) for i in there]
