"""The page of a class: one HTML file that opens without a network, for a screen (light or dark) and for paper.

Nothing of the data is trusted: names of students, skills and items are escaped wherever they stand. The one script
filters the lists by name; without it everything is still there.
"""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from assay.diagnosis.report import STATES, SURE, Diagnosis

_STYLE = """
:root{color-scheme:light dark;--can:#2a7f62;--unsure:#8a6a00;--not:#b5403a;--ink:#1d2733;--soft:#53616f;--line:#dde3e9;
--back:#f6f8fa;--panel:#fff;--track:#e9edf1}
@media (prefers-color-scheme:dark){:root{--can:#3f9f7e;--unsure:#a98412;--not:#d0605a;--ink:#e6ebf0;--soft:#9fb0bf;
--line:#33404c;--back:#141a20;--panel:#1c242c;--track:#33404c}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);margin:0;background:var(--back)}
main{max-width:1080px;margin:0 auto;padding:28px 20px 80px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 10px}h3{font-size:16px;margin:0}
p{margin:6px 0}.soft{color:var(--soft)}
.panel{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin:12px 0}
table{border-collapse:collapse;width:100%}
th,td{padding:5px 8px;text-align:left;font-variant-numeric:tabular-nums;overflow-wrap:break-word}
th{font-weight:600;color:var(--soft);font-size:13px;border-bottom:1px solid var(--line);vertical-align:bottom}
.class td{white-space:nowrap;border-bottom:1px solid var(--line);vertical-align:top}
.scroll{overflow:auto;max-height:75vh}
.grid{border-collapse:separate;border-spacing:2px}
.grid td{text-align:center;min-width:52px;font-size:13px;border-radius:4px}
.grid th{min-width:64px;max-width:120px;font-size:12px;text-align:center;position:sticky;top:0;z-index:2;
background:var(--panel)}
.grid .name{text-align:left;white-space:nowrap;max-width:220px;overflow:hidden;text-overflow:ellipsis;position:sticky;
left:0;z-index:1;background:var(--panel)}
.grid th.name{z-index:3}
.grid a,header a{color:inherit}
.cell-can{background:color-mix(in srgb,var(--can) var(--s),var(--panel))}
.cell-not{background:color-mix(in srgb,var(--not) var(--s),var(--panel))}
.tag{display:inline-block;border-radius:20px;padding:1px 10px;font-size:13px;color:#fff;white-space:nowrap}
.can{background:var(--can)}.unsure{background:var(--unsure)}.not{background:var(--not)}
.bar{position:relative;height:16px;background:var(--track);border-radius:8px;min-width:200px}
.bar i{position:absolute;top:4px;height:8px;border-radius:4px;opacity:.45}
.bar b{position:absolute;top:1px;width:4px;height:14px;border-radius:2px}
.bar u{position:absolute;top:-3px;width:2px;height:22px;background:var(--ink);opacity:.6}
.student{scroll-margin-top:12px;break-inside:avoid}
.student header{display:flex;justify-content:space-between;gap:12px;align-items:baseline;flex-wrap:wrap}
.student td:last-child,.student td:nth-child(5){white-space:nowrap}
ul{margin:6px 0;padding-left:20px}
.stack{display:flex;height:16px;border-radius:8px;overflow:hidden;min-width:160px}.stack div{height:100%}
.class td:first-child,.class details{white-space:normal;min-width:110px}
summary{cursor:pointer}
input{font:inherit;color:inherit;background:var(--panel);border:1px solid var(--line);border-radius:8px;
padding:6px 10px;width:min(320px,100%)}
[hidden]{display:none!important}
@media (max-width:700px){main{padding:16px 10px 60px}.student tr{display:flex;flex-wrap:wrap;gap:4px 10px;
border-bottom:1px solid var(--line);padding:6px 0}.student td{padding:2px 0}.student td:first-child{width:100%}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--line:#bbb;--back:#fff;--panel:#fff;--track:#e5e5e5;
--can:#2a7f62;--unsure:#8a6a00;--not:#b5403a}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
main{max-width:none;padding:0}.screen{display:none}.scroll{overflow:visible;max-height:none}
.panel{border:0;padding:6px 0}
.grid th,.grid .name{position:static}a{text-decoration:none}details>*{display:block}
.student{break-before:page;content-visibility:visible}}
"""
_FILTER = """
const box=document.getElementById('find');
box.addEventListener('input',()=>{const t=box.value.toLowerCase();
document.querySelectorAll('[data-name]').forEach(e=>{e.hidden=!e.dataset.name.toLowerCase().includes(t)})});
addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>{d.open=true}));
"""
_CLASS = ("can", "unsure", "not")


def write_report(
    diagnosis: Diagnosis, path: str | Path, *, title: str = "Diagnosis of a class", students: int = 400
) -> Path:
    """Write one HTML page that opens without a network: the class, then a part for each student.

    Printed, every student has a sheet of paper.

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
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{_text(title)}</h1><p class='soft'>{data.n_students:,} students, {data.n_items:,} items, "
        f"{data.n_kcs} skills, {len(data):,} answers ({data.correct.mean():.0%} right). "
        f"Model: {_text(diagnosis.model)}.</p>",
        _how_to_read(diagnosis),
        _class_part(diagnosis),
        _grid(diagnosis, shown),
        "<h2>Students</h2><p class='screen'><input id='find' type='search' placeholder='Find a student' "
        "aria-label='Find a student'></p>",
        *(_student(diagnosis, i) for i in range(shown)),
    ]
    if shown < data.n_students:
        parts.append(f"<p class='soft'>{data.n_students - shown:,} more students are in the table of results.</p>")
    parts.append(f"</main><script>{_FILTER}</script></body></html>")
    out = Path(path)
    part = out.with_name(f".{out.name}.part")
    part.write_text("".join(parts), encoding="utf-8")
    part.replace(out)
    return out


def _text(value: object) -> str:
    return html.escape(str(value))


def _name(d: Diagnosis, i: int) -> str:
    return _text(d.data.student_ids[i])


def _how_to_read(d: Diagnosis) -> str:
    items = (
        "The bars count both: few answers of the student, and items whose difficulty is itself an estimate."
        if d.refits
        else "The bars take the items as known; with few students in all they are somewhat too narrow."
    )
    return (
        "<div class='panel'><b>How to read this.</b> A number is the chance of a right answer on a typical exercise of "
        f"the skill. A skill counts as passed from {d.threshold:.0%}. <span class='tag can'>can</span> and "
        f"<span class='tag not'>not yet</span> are said when that is at least {SURE:.0%} sure; "
        "<span class='tag unsure'>unsure</span> means: ask more questions. "
        f"A bar is where the chance lies with nine in ten certainty, the line the pass mark. {items}</div>"
    )


def _class_part(d: Diagnosis) -> str:
    state = d.state()
    n_items = d.data.dense_q().sum(0)
    rows = []
    for k in np.argsort(d.mastery.mean(0), kind="stable"):
        share = [float((state[:, k] == v).mean()) for v in range(3)]
        stack = "".join(
            f"<div class='{_CLASS[v]}' style='width:{s:.1%}' title='{STATES[v]}: {s:.0%}'></div>"
            for v, s in enumerate(share)
        )
        needs = np.flatnonzero(state[:, k] == 2)
        names = ", ".join(_name(d, int(i)) for i in needs[np.argsort(d.mastery[needs, k], kind="stable")][:400])
        who = f"<details><summary>{len(needs)} not yet</summary>{names}</details>" if len(needs) else "nobody"
        rows.append(
            f"<tr><td>{_text(d.data.kc_names[k])}</td><td>{d.mastery[:, k].mean():.0%}</td>"
            f"<td><div class='stack'>{stack}</div></td><td>{share[0]:.0%}</td><td>{share[1]:.0%}</td>"
            f"<td>{share[2]:.0%}</td><td>{who}</td><td>{n_items[k]}</td><td>{np.median(d.answers[:, k]):.0f}</td></tr>"
        )
    return (
        "<h2>The class, weakest skill first</h2><div class='panel' style='overflow-x:auto'><table class='class'><thead>"
        "<tr><th>skill</th><th>mean</th><th></th><th>can</th><th>unsure</th><th>not yet</th><th>who to help</th>"
        f"<th>items</th><th>answers a student</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _grid(d: Diagnosis, shown: int) -> str:
    state = d.state()
    head = "".join(f"<th>{_text(name)}</th>" for name in d.data.kc_names)
    body = []
    for i in np.argsort(d.mastery[:shown].mean(1), kind="stable"):
        cells = "".join(
            f"<td class='cell-{'can' if p >= d.threshold else 'not'}' style='--s:{_strength(p, d.threshold):.0f}%' "
            f"title='{STATES[state[i, k]]}, {d.right[i, k]} of {d.answers[i, k]} right'>"
            f"{p:.0%}{'?' if state[i, k] == 1 else ''}</td>"
            for k, p in enumerate(d.mastery[i].tolist())
        )
        name = _name(d, int(i))
        body.append(
            f"<tr data-name='{name}'><td class='name' title='{name}'><a href='#s{i}'>{name}</a></td>{cells}</tr>"
        )
    return (
        "<h2>Who needs what</h2><div class='panel'><p class='soft'>Weakest students first; ? is unsure.</p>"
        f"<div class='scroll'><table class='grid'><thead><tr><th class='name'>student</th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div></div>"
    )


def _strength(p: float, threshold: float) -> float:
    """Colour of a cell in per cent: stronger far from the threshold, never so strong that its text is hard to read."""
    return 12 + 43 * min(1.0, abs(p - threshold) / 0.35)


def _student(d: Diagnosis, i: int) -> str:
    state = d.state()[i]
    mine = d.data.student == i
    n, right = int(mine.sum()), int(d.data.correct[mine].sum())
    lows, highs = (end[i] for end in d.interval())
    rows = []
    for k in np.argsort(d.mastery[i], kind="stable"):
        p, low, high, kind = float(d.mastery[i, k]), float(lows[k]), float(highs[k]), _CLASS[state[k]]
        bar = (
            f"<div class='bar' role='img' aria-label='{low:.0%} to {high:.0%}'><i class='{kind}' "
            f"style='left:{low:.1%};width:{max(high - low, 0.01):.1%}'></i>"
            f"<b class='{kind}' style='left:calc({p:.1%} - 2px)'></b><u style='left:{d.threshold:.1%}'></u></div>"
        )
        rows.append(
            f"<tr><td>{_text(d.data.kc_names[k])}</td><td><span class='tag {kind}'>{STATES[state[k]]}</span></td>"
            f"<td>{p:.0%}</td><td>{bar}</td><td class='soft'>{low:.0%} to {high:.0%}</td>"
            f"<td class='soft'>{d.right[i, k]} of {d.answers[i, k]} right</td></tr>"
        )
    steps = []
    for k, items in d.practise[i]:
        names = ", ".join(_item(d, j) for j in items) or "all its items are solved; bring new ones"
        steps.append(f"<li><b>{_text(d.data.kc_names[k])}</b>: {names}</li>")
    if steps:
        plan = f"<p><b>Practise next</b></p><ul>{''.join(steps)}</ul>"
    elif (state == 0).all():
        plan = "<p><b>All skills are passed.</b></p>"
    else:
        plan = "<p><b>Nothing to practise before earlier skills are safe.</b></p>"
    name = _name(d, i)
    return (
        f"<section class='panel student' id='s{i}' data-name='{name}'><header><h3>{name}</h3>"
        f"<span class='soft'>{right} of {n} answers right</span></header><table>{''.join(rows)}</table>{plan}</section>"
    )


def _item(d: Diagnosis, j: int) -> str:
    """Title of an item, and its name where other items have the same title."""
    titles, name = d.data.titles, d.data.item_ids[j]
    if not titles:
        return _text(name)
    return _text(titles[j]) if titles.count(titles[j]) == 1 else f"{_text(titles[j])} ({_text(name)})"
