"""What a teacher reads: which skills, how sure, what to practise next; a page for a class with a part for each student.

Mastery in a report is calibrated: the probability of a right answer on a typical item of the skill, the same meaning
for every model. How sure it is comes from draws of each student's state: "can" and "not yet" are said where at least
four fifths of the draws lie on that side of the pass threshold, "unsure" otherwise.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError
from assay.diagnosis.estimator import DiagnosisModel, skill_weights
from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.responses import ResponseData

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.8
STATES = ("can", "unsure", "not yet")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Calibrated mastery of students with its uncertainty.

    Attributes
    ----------
    mastery, sd : float32[S, K]
        Probability of a right answer on a typical item of the skill, and its posterior standard deviation.
    passing : float32[S, K]
        Probability that it reaches the threshold.
    answers, right : int64[S, K]
        What the diagnosis rests on.
    practise : list of list of (skill, items)
        For each student: skills to practise next, with the unanswered (or wrong) items that would tell most.
    threshold : float
    model : str
    """

    mastery: NDArray[np.float32]
    sd: NDArray[np.float32]
    passing: NDArray[np.float32]
    answers: NDArray[np.int64]
    right: NDArray[np.int64]
    practise: list[list[tuple[int, list[int]]]]
    threshold: float
    model: str
    data: ResponseData
    predicted: NDArray[np.float32] = field(repr=False)

    def state(self) -> NDArray[np.int64]:
        """``int64[S, K]``: 0 can, 1 unsure, 2 not yet."""
        return np.where(self.passing >= SURE, 0, np.where(self.passing <= 1 - SURE, 2, 1))

    def frame(self) -> pd.DataFrame:
        """A row a student and skill, for spreadsheets."""
        import pandas as pd

        s, k = self.mastery.shape
        state = self.state()
        return pd.DataFrame(
            {
                "student": np.repeat(np.array(self.data.student_ids, dtype=object), k),
                "skill": list(self.data.kc_names) * s,
                "mastery": self.mastery.ravel(),
                "sd": self.sd.ravel(),
                "probability_of_passing": self.passing.ravel(),
                "state": [STATES[v] for v in state.ravel()],
                "answers": self.answers.ravel(),
                "right": self.right.ravel(),
            }
        )


def diagnose(
    model: DiagnosisModel,
    data: ResponseData,
    *,
    threshold: float = 0.65,
    draws: int = 50,
    n_skills: int = 2,
    n_items: int = 3,
    seed: int = 0,
) -> Diagnosis:
    """Score students with a fitted model and say what to practise.

    Practise next: skills that are not passed for sure and whose prerequisites are not themselves "not yet", weakest
    first. Items: those of the skill that are unanswered or were answered wrongly, with the largest expected information
    about the student (mutual information of the answer and the student's state, from the draws).

    Parameters
    ----------
    model : DiagnosisModel
    data : ResponseData
        Answers of the students; items as in training.
    threshold : float
        Calibrated mastery that passes.
    draws : int
        Draws of each student's state.
    n_skills, n_items : int
        How much to suggest.

    Raises
    ------
    DiagnosisError
        If the threshold is no probability.

    Examples
    --------
    >>> from assay.diagnosis import GDINA, diagnose, simulate_platform
    >>> made = simulate_platform(300, 20, 3, density=1.0, slip=0.1, guess=0.1, seed=0)
    >>> found = diagnose(GDINA("DINA").fit(made.data), made.data)
    >>> sure = found.state() != 1
    >>> bool(np.mean((found.state() == 0)[sure] == (made.alpha > 0.5)[sure]) > 0.85)
    True
    """
    if not 0 < threshold < 1:
        raise DiagnosisError(f"threshold={threshold} is no probability between 0 and 1")
    if draws < 2:
        raise DiagnosisError(f"draws={draws} must be at least 2")
    scored = model.with_students(data)
    rng = np.random.default_rng(seed)
    n, k = data.n_students, data.n_kcs
    weights = skill_weights(scored.q_)
    total = np.zeros((n, k))
    square, passing = np.zeros_like(total), np.zeros_like(total)
    mean_p = np.zeros((n, data.n_items), dtype=np.float32)
    entropy = np.zeros_like(mean_p)
    kept = scored.states_
    for _ in range(draws):
        scored.states_ = kept
        scored.states_ = scored.sample_states(rng)
        p = np.clip(scored.predict_matrix(), 1e-6, 1 - 1e-6)
        value = p @ weights
        total += value
        square += value.astype(np.float64) ** 2
        passing += value >= threshold
        mean_p += p / draws
        entropy += _entropy(p) / draws
    scored.states_ = kept
    mean = total / draws
    sd = np.sqrt(np.maximum(square / draws - mean**2, 0))
    rows, skill = data.per_skill()
    cell = data.student[rows].astype(np.int64) * k + skill
    answers = np.bincount(cell, minlength=n * k).reshape(n, k)
    right = np.bincount(cell, data.correct[rows], n * k).astype(np.int64).reshape(n, k)
    diagnosis = Diagnosis(
        mean.astype(np.float32),
        sd.astype(np.float32),
        (passing / draws).astype(np.float32),
        answers,
        right,
        [],
        threshold,
        repr(model),
        data,
        mean_p,
    )
    information = _entropy(np.clip(mean_p, 1e-6, 1 - 1e-6)) - entropy
    diagnosis.practise.extend(_practise(diagnosis, information, n_skills, n_items))
    return diagnosis


def _entropy(p: NDArray[Any]) -> NDArray[Any]:
    value: NDArray[Any] = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    return value


def _practise(
    diagnosis: Diagnosis, information: Float[np.ndarray, "students items"], n_skills: int, n_items: int
) -> list[list[tuple[int, list[int]]]]:
    data = diagnosis.data
    state = diagnosis.state()
    hierarchy = Hierarchy(data.n_kcs, data.prerequisites, data.kc_names)
    parents = [hierarchy.parents(k) for k in range(data.n_kcs)]
    q = data.dense_q()
    done = np.zeros((data.n_students, data.n_items), dtype=bool)
    done[data.student, data.item] = data.correct == 1
    found = []
    for i in range(data.n_students):
        open_ = [k for k in range(data.n_kcs) if state[i, k] != 0 and all(state[i, p] != 2 for p in parents[k])]
        chosen = sorted(open_, key=lambda k, i=i: diagnosis.mastery[i, k])[:n_skills]  # type: ignore[misc]
        plan = []
        for k in chosen:
            items = np.flatnonzero(q[:, k] & ~done[i])
            plan.append((k, items[np.argsort(-information[i, items], kind="stable")][:n_items].tolist()))
        found.append(plan)
    return found


# -- the page ----------------------------------------------------------------------------------------------------------

_STYLE = """
:root{--can:#2a7f62;--unsure:#b98a00;--not:#b5403a;--ink:#1d2733;--soft:#5c6b7a;--line:#dde3e9;--back:#f6f8fa}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);margin:0;background:var(--back)}
main{max-width:1080px;margin:0 auto;padding:28px 20px 80px}h1{font-size:26px;margin:0 0 4px}h2{font-
size:19px;margin:36px 0 10px}
h3{font-size:16px;margin:0}p{margin:6px 0}.soft{color:var(--soft)}.panel{background:#fff;border:1px solid
var(--line);border-radius:10px;padding:16px 18px;margin:12px 0}
table{border-collapse:collapse;width:100%}th,td{padding:5px 8px;text-align:left;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft);font-size:13px;border-bottom:1px solid var(--line);vertical-
align:bottom}.grid{overflow-x:auto}
.grid td{text-align:center;border:2px solid #fff;min-width:52px;font-size:13px}.grid td.name{text-align:left;white-
space:nowrap;background:#fff}
.grid td a{color:inherit;text-decoration:none}.grid th{max-width:120px;font-size:12px;text-align:center}.grid
th.name{text-align:left}
.tag{display:inline-block;border-radius:20px;padding:1px 10px;font-size:13px;color:#fff;white-space:nowrap}
.can{background:var(--can)}.unsure{background:var(--unsure)}.not{background:var(--not)}
.bar{position:relative;height:16px;background:#e9edf1;border-radius:8px;min-width:220px}
.bar i{position:absolute;top:4px;height:8px;border-radius:4px;opacity:.45}.bar
b{position:absolute;top:1px;width:4px;height:14px;border-radius:2px}
.bar u{position:absolute;top:-3px;width:1px;height:22px;background:#444}.student{scroll-margin-top:12px;break-
inside:avoid}
.student header{display:flex;justify-content:space-between;gap:12px;align-items:baseline}ul{margin:6px 0;padding-
left:20px}
.stack{display:flex;height:16px;border-radius:8px;overflow:hidden;min-width:220px}.stack div{height:100%}
@media print{body{background:#fff}.panel{border:0;padding:6px 0}a{color:inherit}}
"""
_CLASS = ("can", "unsure", "not")
_COLOUR = ("#2a7f62", "#b98a00", "#b5403a")


def write_report(
    diagnosis: Diagnosis, path: str | Path, *, title: str = "Diagnosis of a class", students: int = 400
) -> Path:
    """Write one HTML page that opens without a network: the class, then a part for each student.

    Parameters
    ----------
    diagnosis : Diagnosis
    path : path
    title : str
    students : int
        Students that get a part (and a row in the class's table), in the order of the data.

    Returns
    -------
    Path
    """
    data = diagnosis.data
    shown = min(students, data.n_students)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width'>",
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{_text(title)}</h1><p class='soft'>{data.n_students:,} students, {data.n_items:,} items, "
        f"{data.n_kcs} skills, "
        f"{len(data):,} answers ({data.correct.mean():.0%} right). Model: {_text(diagnosis.model)}.</p>",
        _how_to_read(diagnosis),
        _class_part(diagnosis),
        _grid(diagnosis, shown),
        f"<h2>Students</h2>{''.join(_student(diagnosis, i) for i in range(shown))}",
    ]
    if shown < data.n_students:
        parts.append(f"<p class='soft'>{data.n_students - shown:,} more students are in the table of results.</p>")
    parts.append("</main></body></html>")
    out = Path(path)
    part = out.with_name(f".{out.name}.part")
    part.write_text("".join(parts), encoding="utf-8")
    part.replace(out)
    return out


def _text(value: object) -> str:
    return html.escape(str(value))


def _how_to_read(d: Diagnosis) -> str:
    return (
        "<div class='panel'><b>How to read this.</b> A number is the chance of a right answer on a typical "
        "exercise of the skill. "
        f"A skill counts as passed from {d.threshold:.0%}. "
        "<span class='tag can'>can</span> and <span class='tag not'>not yet</span> are said when that is at "
        f"least {SURE:.0%} sure; "
        "<span class='tag unsure'>unsure</span> means: ask more questions. Few answers make wide bars; bars take "
        "the items' "
        "parameters as known.</div>"
    )


def _class_part(d: Diagnosis) -> str:
    state = d.state()
    n_items = d.data.dense_q().sum(0)
    order = np.argsort(d.mastery.mean(0))
    rows = []
    for k in order:
        share = [float((state[:, k] == v).mean()) for v in range(3)]
        stack = "".join(
            f"<div style='width:{s:.1%};background:{c}' title='{STATES[v]}: {s:.0%}'></div>"
            for v, (s, c) in enumerate(zip(share, _COLOUR))
        )
        needs = np.flatnonzero(state[:, k] == 2)
        rows.append(
            f"<tr><td class='name'>{_text(d.data.kc_names[k])}</td><td>{d.mastery[:, k].mean():.0%}</td><td><div "
            f"class='stack'>{stack}</div></td>"
            f"<td>{share[0]:.0%}</td><td>{share[1]:.0%}</td><td>{share[2]:.0%} ({len(needs)})</td><td>{n_items[k]}</td>"
            f"<td>{np.median(d.answers[:, k]):.0f}</td></tr>"
        )
    return (
        "<h2>The class, weakest skill first</h2><div class='panel grid'><table><tr><th "
        "class='name'>skill</th><th>mean</th><th></th><th>can</th>"
        "<th>unsure</th><th>not yet (students)</th><th>items</th><th>answers a "
        f"student</th></tr>{''.join(rows)}</table></div>"
    )


def _grid(d: Diagnosis, shown: int) -> str:
    state = d.state()
    head = "".join(f"<th>{_text(name)}</th>" for name in d.data.kc_names)
    body = []
    for i in np.argsort(d.mastery[:shown].mean(1), kind="stable"):
        cells = "".join(
            f"<td style='background:{_shade(float(d.mastery[i, k]), d.threshold)}' title='{STATES[state[i, k]]}, "
            f"{d.right[i, k]} of {d.answers[i, k]} right'>{d.mastery[i, k]:.0%}{'?' if state[i, k] == 1 else ''}</td>"
            for k in range(d.data.n_kcs)
        )
        body.append(f"<tr><td class='name'><a href='#s{i}'>{_text(d.data.student_ids[i])}</a></td>{cells}</tr>")
    return (
        "<h2>Who needs what</h2><div class='panel grid'><p class='soft'>Weakest students first; ? is unsure.</p>"
        f"<table><tr><th class='name'>student</th>{head}</tr>{''.join(body)}</table></div>"
    )


def _shade(p: float, threshold: float) -> str:
    """Red below the threshold, green above, paler near it."""
    distance = min(1.0, abs(p - threshold) / 0.35)
    base = (42, 127, 98) if p >= threshold else (181, 64, 58)
    return "#" + "".join(f"{round(255 - (255 - c) * 0.6 * distance):02x}" for c in base)


def _student(d: Diagnosis, i: int) -> str:
    state = d.state()[i]
    n, right = int((d.data.student == i).sum()), int(d.data.correct[d.data.student == i].sum())
    rows = []
    for k in np.argsort(d.mastery[i]):
        low, high = np.clip([d.mastery[i, k] - 1.64 * d.sd[i, k], d.mastery[i, k] + 1.64 * d.sd[i, k]], 0, 1)
        colour = _COLOUR[state[k]]
        bar = (
            f"<div class='bar'><i style='left:{low:.1%};width:{max(high - low, 0.01):.1%};background:{colour}'></i>"
            f"<b style='left:calc({d.mastery[i, k]:.1%} - 2px);background:{colour}'></b><u "
            f"style='left:{d.threshold:.1%}'></u></div>"
        )
        rows.append(
            f"<tr><td>{_text(d.data.kc_names[k])}</td><td><span class='tag "
            f"{_CLASS[state[k]]}'>{STATES[state[k]]}</span></td>"
            f"<td>{d.mastery[i, k]:.0%}</td><td>{bar}</td><td class='soft'>{low:.0%} to {high:.0%}</td>"
            f"<td class='soft'>{d.right[i, k]} of {d.answers[i, k]} right</td></tr>"
        )
    steps = []
    for k, items in d.practise[i]:
        names = ", ".join(_item(d.data, j) for j in items) or "all its items are solved; bring new ones"
        steps.append(f"<li><b>{_text(d.data.kc_names[k])}</b>: {names}</li>")
    plan = f"<p><b>Practise next</b></p><ul>{''.join(steps)}</ul>" if steps else "<p><b>All skills are passed.</b></p>"
    return (
        f"<section class='panel student' id='s{i}'><header><h3>{_text(d.data.student_ids[i])}</h3><span "
        f"class='soft'>{right} of {n} answers right</span>"
        f"</header><table>{''.join(rows)}</table>{plan}</section>"
    )


def _item(data: ResponseData, j: int) -> str:
    return _text(data.titles[j] if data.titles else data.item_ids[j])
