"""One call from saved predictions to a full report."""

from __future__ import annotations

import csv
import html
import json
import zipfile
from base64 import b64encode
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty import metrics as m
from assay.uncertainty.conformal import SplitConformal, risk_threshold
from assay.uncertainty.conformal.classification import label_codes
from assay.uncertainty.credal import enclosing, lower_entropy, upper_entropy
from assay.uncertainty.credal_methods import credal_wrapper
from assay.uncertainty.errors import AmbiguousAxis, TargetShape, UncertaintyError
from assay.uncertainty.measures import quantify
from assay.uncertainty.protocols import Result, first_order, ood_detection, selective_prediction
from assay.uncertainty.representations import Sample

Array = NDArray[np.float64]


@dataclass
class Audit:
    """What saved predictions say about themselves, and how true that is.

    Attributes
    ----------
    sections : dict of str to dict
        Figures by section: data, quality, calibration, uncertainty, selective, conformal, groups, ...
    results : dict of str to Result
    rows : dict of str to array
        One value a row: predicted class, total, aleatoric, epistemic.
    """

    sections: dict[str, dict[str, Any]]
    results: dict[str, Result] = field(default_factory=dict)
    rows: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    sample: Sample | None = field(default=None, repr=False)
    codes: NDArray[np.int64] | None = field(default=None, repr=False)

    def text(self) -> str:
        """The report as plain text."""
        lines = []
        for title, figures in self.sections.items():
            lines.append(title)
            lines += [f"  {name:<34} {_shown(value)}" for name, value in figures.items()]
        return "\n".join(lines)

    def write(self, folder: str | Path) -> Path:
        """Write ``report.html``, ``report.json`` and ``rows.csv``; each file whole or not at all."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        _whole(target / "report.json", json.dumps(_plain(self.sections), indent=2))
        names = list(self.rows)
        lines = [",".join(["row", *names])]
        for i in range(len(next(iter(self.rows.values()), []))):
            lines.append(",".join([str(i), *(_cell(self.rows[n][i]) for n in names)]))
        _whole(target / "rows.csv", "\n".join(lines) + "\n")
        _whole(target / "report.html", self._page())
        return target / "report.html"

    def _page(self) -> str:
        from assay.uncertainty import plots

        pictures = []
        if self.sample is not None and self.codes is not None:
            p = self.sample.mean()
            pictures.append(plots.plot_reliability(p, self.codes))
        if "selective" in self.results:
            pictures.append(plots.plot_risk_coverage({"total uncertainty": self.results["selective"]}))
        if self.sample is not None:
            pictures.append(plots.plot_histograms(self.rows))
        parts = [
            "<!doctype html><meta charset='utf-8'><title>Audit of predictions</title><style>"
            "body{font:15px/1.5 system-ui,sans-serif;"
            "max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
            "table{border-collapse:collapse;margin:.5rem 0 1.5rem}"
            "td{padding:.15rem 1rem .15rem 0;border-bottom:1px solid #eee}"
            "td:last-child{font-variant-numeric:tabular-nums}"
            "img{max-width:100%}</style><h1>Audit of predictions</h1>"
        ]
        for figure in pictures:
            buffer = BytesIO()
            figure.savefig(buffer, format="png", dpi=110)
            parts.append(f"<img alt='' src='data:image/png;base64,{b64encode(buffer.getvalue()).decode()}'>")
        for title, figures in self.sections.items():
            rows = "".join(
                f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(_shown(v))}</td></tr>" for k, v in figures.items()
            )
            parts.append(f"<h2>{html.escape(title)}</h2><table>{rows}</table>")
        return "\n".join(parts)


def read_predictions(
    path: str | Path, *, key: str | None = None, axis: int | None = None, n_rows: int | None = None
) -> tuple[Sample, int | None]:
    """Member probabilities from ``.npz``, ``.npy`` or CSV.

    Parameters
    ----------
    path : path
        ``.npy`` is mapped into memory, not read whole. A CSV with columns ``row, member`` and one a class, or one
        column a class (a single member).
    key : str, optional
        Array in an ``.npz``; needed if there are several.
    axis : int, optional
        Axis of the members of a three-dimensional array; -1 cannot be it. Two dimensions are a single member.
    n_rows : int, optional
        Number of labels, if known: settles the axis where only one fits.

    Returns
    -------
    sample, axis

    Raises
    ------
    AmbiguousAxis
        If both of the first two axes could be the members'; the axis is named by the caller, never guessed.
    UncertaintyError, NotADistribution
    """
    path = Path(path)
    if not path.is_file():
        raise UncertaintyError(f"there is no file {path}")
    if path.suffix == ".csv":
        return _read_csv(path), -2
    if path.suffix == ".npy":
        array = _unpickled(lambda: np.load(path, mmap_mode="r", allow_pickle=False), path)
    else:
        with _unpickled(lambda: np.load(path, allow_pickle=False), path) as file:
            names = list(file)
            if key is None and len(names) != 1:
                raise UncertaintyError(f"{path} holds the arrays {', '.join(names)}; name one with key")
            if key is not None and key not in names:
                raise UncertaintyError(f"{path} has no array {key!r}; it holds {', '.join(names)}")
            array = _unpickled(lambda: file[key or names[0]], path)
    return as_sample(array, axis=axis, n_rows=n_rows)


def as_sample(array: Any, *, axis: int | None = None, n_rows: int | None = None) -> tuple[Sample, int | None]:
    """An array ``(N, K)``, ``(N, M, K)`` or ``(M, N, K)`` as a sample.

    Raises
    ------
    AmbiguousAxis
    """
    if array.ndim == 2:
        return Sample(array[:, None, :]), None
    if array.ndim != 3:
        raise AmbiguousAxis(
            f"predictions are (rows, classes) or have one axis of members more, not shape {array.shape}"
        )
    if axis is None:
        fits = [a for a in (0, 1) if n_rows is not None and array.shape[1 - a] == n_rows]
        if len(fits) != 1:
            raise AmbiguousAxis(
                f"shape {array.shape}: say which axis holds the members, 0 for (members, rows, classes) or "
                "1 for (rows, members, classes)"
            )
        axis = fits[0]
    return Sample(array, axis=axis), axis


def _unpickled(read: Any, path: Path) -> Any:
    try:
        return read()
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UncertaintyError(
            f"{path} cannot be read as plain arrays ({error}); save with np.save or np.savez, no objects"
        ) from error


def _read_csv(path: Path) -> Sample:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    head, body = rows[0], rows[1:]
    try:
        table = np.array([[float(v) for v in row] for row in body])
    except ValueError as error:
        raise UncertaintyError(f"{path}: {error}; every cell below the header must be a number") from error
    names = [h.strip().lower() for h in head]
    columns = [i for i, h in enumerate(names) if h not in ("row", "member")]
    if "member" not in names:
        return Sample(table[:, None, columns]).named([head[i] for i in columns])
    if "row" not in names:
        raise AmbiguousAxis(f"{path} has a column member but none named row")
    r, member = table[:, names.index("row")].astype(int), table[:, names.index("member")].astype(int)
    members = np.unique(member)
    order = np.lexsort((member, r))
    n = len(np.unique(r))
    if len(table) != n * len(members):
        raise UncertaintyError(f"{path}: {len(table)} lines are not {n} rows x {len(members)} members")
    return Sample(table[order][:, columns].reshape(n, len(members), -1)).named([head[i] for i in columns])


def read_labels(path: str | Path) -> NDArray[Any]:
    """Labels from a CSV column, ``.npy`` or ``.npz``; several numeric columns are distributions.

    Raises
    ------
    UncertaintyError
    """
    path = Path(path)
    if not path.is_file():
        raise UncertaintyError(f"there is no file {path}")
    if path.suffix == ".npy":
        return np.asarray(_unpickled(lambda: np.load(path, allow_pickle=False), path))
    if path.suffix == ".npz":
        with _unpickled(lambda: np.load(path, allow_pickle=False), path) as file:
            return np.asarray(file[next(iter(file))])
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.reader(handle) if row]
    if not rows:
        raise UncertaintyError(f"{path} is empty")
    if len(rows[0]) > 1:
        start = 0 if _number(rows[0][0]) else 1
        return np.array([[float(v) for v in row] for row in rows[start:]])
    cells = [row[0].strip() for row in rows]
    if not _number(cells[0]) and (
        len(cells) == 1 or _number(cells[1]) or cells[0].lower() in ("y", "label", "labels", "target")
    ):
        cells = cells[1:]
    if all(_number(c) and float(c) == int(float(c)) for c in cells):
        return np.array([int(float(c)) for c in cells], dtype=np.int64)
    return np.array(cells)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def audit(
    predictions: Sample | ArrayLike | str | Path,
    y: ArrayLike | str | Path | None = None,
    *,
    axis: int | None = None,
    key: str | None = None,
    groups: ArrayLike | None = None,
    ood: Sample | ArrayLike | str | Path | None = None,
    alpha: float = 0.1,
    classes: Sequence[Hashable] | None = None,
    resamples: int = 200,
    seed: int = 0,
    rows_for_credal: int = 20_000,
) -> Audit:
    """The full report on saved member probabilities.

    Parameters
    ----------
    predictions : Sample, array or path
        ``(N, K)``, ``(N, M, K)`` or ``(M, N, K)``; see `read_predictions`.
    y : labels, distributions or path, optional
        Without labels only what needs none is reported.
    axis, key : optional
        Of the members; name of the array in an ``.npz``.
    groups : array_like, optional
        Group of each row, for coverage by group.
    ood : optional
        Predictions on foreign inputs, same members.
    alpha : float
        Of the conformal sets: half of the rows calibrate, half are judged.
    classes : sequence, optional
    resamples, seed : int
        Of the bootstrap.
    rows_for_credal : int
        Credal entropies are computed on at most so many rows.

    Returns
    -------
    Audit

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), 500)
    >>> y = (p.cumsum(1) < rng.random((500, 1))).sum(1)
    >>> members = np.stack([0.9 * p + 0.1 * rng.dirichlet(np.ones(3), 500) for _ in range(5)], axis=1)
    >>> report = audit(members, y, axis=1, resamples=50)
    >>> sorted(report.sections)
    ['calibration', 'conformal sets', 'credal set', 'data', 'quality', 'selective prediction', 'uncertainty']
    >>> report.sections["calibration"]["ECE"] < 0.1
    True
    """
    labels = read_labels(y) if isinstance(y, (str, Path)) else None if y is None else np.asarray(y)
    n_rows = None if labels is None else len(labels)
    sample, axis = _opened(predictions, axis, key, n_rows)
    if classes is not None:
        sample.named(classes)
    n, k, members = len(sample), sample.n_classes, sample.n_members
    mean = sample.mean()
    parts = quantify(sample)
    total, aleatoric, epistemic = (np.asarray(v) for v in (parts.total, parts.aleatoric, parts.epistemic))
    rows: dict[str, NDArray[Any]] = {
        "predicted": sample.predict(),
        "total": total,
        "aleatoric": aleatoric,
        "epistemic": epistemic,
    }
    sections: dict[str, dict[str, Any]] = {
        "data": {"rows": n, "members": members, "classes": k, **({} if axis is None else {"axis of members": axis})},
        "uncertainty": {
            "total entropy, mean (nats)": float(total.mean()),
            "aleatoric": float(aleatoric.mean()),
            "epistemic": float(epistemic.mean()),
            "epistemic share of the total": float(epistemic.sum() / total.sum()) if total.sum() > 0 else 0.0,
            "epistemic, total variation": float(np.mean(quantify(sample, "tv").get("epistemic"))),
            "rows on which members disagree": float(
                (sample.probs.argmax(-1) != mean.argmax(-1)[:, None]).any(1).mean()
            ),
        },
    }
    if members > 1:
        some = np.random.default_rng(seed).permutation(n)[:rows_for_credal]
        box = credal_wrapper(sample.rows(np.sort(some)))
        sections["credal set"] = {
            "mean width of the intervals": float((box.upper - box.lower).mean()),
            "upper entropy, mean": float(upper_entropy(box).mean()),
            "lower entropy, mean": float(np.mean([lower_entropy(box).mean()])),
            "classes not dominated, mean": float(
                (enclosing(box).upper >= box.lower.max(-1, keepdims=True)).sum(1).mean()
            ),
        }
    found = Audit(sections, {}, rows, sample)
    if labels is not None:
        if len(labels) != n:
            raise TargetShape(f"{n} rows of predictions and {len(labels)} labels")
        if labels.ndim == 2:
            _first_order_sections(found, sample, labels, resamples, seed)
        else:
            _label_sections(found, sample, labels, groups, alpha, resamples, seed)
    if ood is not None:
        outside, _ = _opened(ood, axis, key, None)
        far = quantify(outside)
        result = ood_detection(epistemic, far.get("epistemic"), resamples=resamples, seed=seed)
        found.results["ood"] = result
        sections["foreign inputs, by epistemic entropy"] = _with_intervals(result)
    return found


def _opened(given: Any, axis: int | None, key: str | None, n_rows: int | None) -> tuple[Sample, int | None]:
    if isinstance(given, Sample):
        return given, None
    if isinstance(given, (str, Path)):
        return read_predictions(given, key=key, axis=axis, n_rows=n_rows)
    return as_sample(np.asarray(given), axis=axis, n_rows=n_rows)


def _label_sections(
    found: Audit,
    sample: Sample,
    labels: NDArray[Any],
    groups: ArrayLike | None,
    alpha: float,
    resamples: int,
    seed: int,
) -> None:
    p = sample.mean()
    codes = label_codes(labels, len(p), sample.n_classes, sample.classes if labels.dtype.kind not in "iuf" else None)
    wrong = p.argmax(1) != codes
    each = sample.probs.argmax(-1) == codes[:, None]
    found.codes = codes
    found.rows["wrong"] = wrong
    low, high = m.wilson(int((~wrong).sum()), len(wrong))
    found.sections["quality"] = {
        "accuracy": (float((~wrong).mean()), low, high),
        "accuracy of single members, mean": float(each.mean()),
        "log loss (nats)": (
            m.log_loss(p, codes),
            *m.bootstrap(lambda r: m.log_loss(p[r], codes[r]), len(p), resamples=resamples, seed=seed),
        ),
        "Brier score": m.brier_score(p, codes),
        "sharpness (mean entropy)": m.sharpness(p),
    }
    found.sections["calibration"] = {
        "ECE": m.expected_calibration_error(p, codes),
        "ECE, bins of equal mass": m.expected_calibration_error(p, codes, mass="equal"),
        "classwise ECE": m.classwise_calibration_error(p, codes),
        "KS error": m.ks_calibration_error(p, codes),
        "largest gap of a bin": m.expected_calibration_error(p, codes, norm="max"),
    }
    total = found.rows["total"]
    result = selective_prediction(total, wrong, resamples=resamples, seed=seed)
    found.results["selective"] = result
    found.sections["selective prediction"] = _with_intervals(result)
    for risk in (0.01, 0.05):
        threshold = risk_threshold(total, wrong, risk=risk)
        found.sections["selective prediction"][f"accepted with error <= {risk:.0%}, 95 % sure"] = threshold.coverage
    order = np.random.default_rng(seed).permutation(len(p))
    cal, test = order[: len(p) // 2], order[len(p) // 2 :]
    figures: dict[str, Any] = {}
    for score in ("lac", "aps", "raps"):
        sets = SplitConformal(score, alpha, random_state=seed).fit(p[cal], codes[cal]).predict(p[test])
        covered = sets.covers(codes[test])
        figures[f"{score.upper()} coverage (goal {1 - alpha:.0%})"] = (
            float(covered.mean()),
            *m.wilson(int(covered.sum()), len(covered)),
        )
        figures[f"{score.upper()} mean size"] = float(sets.size.mean())
        worst = m.size_stratified_coverage(sets, codes[test])[0]
        figures[f"{score.upper()} worst size class ({worst.name})"] = (worst.coverage, worst.low, worst.high)
        if score == "lac":
            names = sample.classes or tuple(range(sample.n_classes))
            by_class = m.coverage_by(covered, np.array([str(names[c]) for c in codes[test]]))[0]
            figures[f"LAC worst class ({by_class.name}, {by_class.n} rows)"] = (
                by_class.coverage,
                by_class.low,
                by_class.high,
            )
            if groups is not None:
                worst_group = m.coverage_by(covered, np.asarray(groups)[test])[0]
                figures[f"LAC worst group ({worst_group.name}, {worst_group.n} rows)"] = (
                    worst_group.coverage,
                    worst_group.low,
                    worst_group.high,
                )
    found.sections["conformal sets"] = figures


def _first_order_sections(found: Audit, sample: Sample, target: Array, resamples: int, seed: int) -> None:
    result = first_order(sample, target, resamples=resamples, seed=seed)
    found.results["first_order"] = result
    found.sections["first-order targets"] = _with_intervals(result)


def _with_intervals(result: Result) -> dict[str, Any]:
    return {
        k.replace("_", " "): (v, *result.ci[k]) if k in result.ci else v for k, v in result.scores.items() if v == v
    }


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.4f}  [{value[1]:.4f}, {value[2]:.4f}]"
    return f"{value:.4f}" if isinstance(value, float) else f"{value}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return {"value": _plain(value[0]), "low": _plain(value[1]), "high": _plain(value[2])}
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _cell(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, (float, np.floating)) else str(value)


def _whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
