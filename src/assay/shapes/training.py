"""How the table of the shipped model is made, and how well a model does on shapes of another make.

    python -m assay.shapes.training table.jsonl            # the shapes that are not in the file yet, then the figures
    python -m assay.shapes.training table.jsonl --part 0/2 # a share of them, for a second process

Training shapes are of the kinds of the generator over the thickness and imbalance of "bench-v1", beside plain ones
(lines, rings, three arms, few clusters, one Gaussian cloud) of 300 to 2000 cells. Held-out shapes come from other seeds
and from other templates: bent and tapering edges, cells crowded in the middle or at the ends of edges, caterpillar
trees, scattered outliers, other numbers of columns, thickness between the steps of the grid.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from assay.shapes.model import TABLE, ShapeClassifier, write_table
from assay.shapes.reeb.tower import ReebTower
from assay.shapes.synthetic import KINDS, LABELS, make_shape

TRAINING, HELD_OUT = 1014, 208
SIGMAS = (0.02, 0.05, 0.1, 0.2, 0.4)
PLAIN = ("line", "ring", "three arms", "few clusters", "cloud")
TEMPLATES = (*KINDS, *PLAIN)


def draw(i: int, seed: int = 0, held_out: bool = False) -> tuple[NDArray[Any], Bool[np.ndarray, " 4"]]:
    """Cells and true labels of the i-th shape: templates in turn, the rest drawn.

    Examples
    --------
    >>> X, label = draw(TEMPLATES.index("three arms"))
    >>> X.shape[1], [name for name, holds in zip(LABELS, label, strict=True) if holds]
    (30, ['multi_branch'])
    """
    rng = np.random.default_rng([seed, i, int(held_out)])
    template = TEMPLATES[i % len(TEMPLATES)]
    n = int(300 * (2000 / 300) ** (rng.random() ** 1.5))
    d = int(rng.choice((20, 60) if held_out else (10, 30)))
    if template == "cloud":
        spread = np.ones(d)
        spread[: int(rng.integers(1, 5))] = rng.uniform(1, 3)
        return rng.normal(size=(n, d)) * spread, np.zeros(len(LABELS), dtype=bool)
    options: dict[str, Any] = {"seed": int(rng.integers(2**31))}
    if template in PLAIN:
        kind, parts = {
            "line": ("path", int(rng.integers(1, 4))),
            "ring": ("cycle", None),
            "three arms": ("star", 3),
            "few clusters": ("clusters", int(rng.integers(2, 6))),
        }[template]
        options |= {"parts": parts, "sigma": float(np.exp(rng.uniform(np.log(0.02), np.log(0.12))))}
    else:
        kind = template
        options |= {"sigma": float(rng.choice(SIGMAS)), "imbalance": float(rng.choice([1, 5, 20]))}
        options["curvature"] = float(rng.choice([0.0, 0.15]))
    if held_out:
        options["sigma"] = float(np.exp(rng.uniform(np.log(0.02), np.log(0.12 if template in PLAIN else 0.4))))
        options |= {"curvature": float(rng.uniform(0, 0.3)), "taper": float(rng.uniform(0, 0.6))}
        options |= {"beta": ((0.7, 0.7), (1.0, 1.0), (1.5, 1.5))[int(rng.integers(3))]}
        options |= {"outliers": float(rng.choice([0.0, 0.01])), "caterpillar": bool(rng.random() < 0.5)}
    made = make_shape(kind, n, d, **options)
    return made.X, made.label


def judged(i: int, seed: int = 0, held_out: bool = False) -> dict[str, Any]:
    """Features of the i-th shape, its true labels, and what the rules say of it."""
    from assay.shapes.classify import judge

    X, label = draw(i, seed, held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tower = ReebTower(n_bootstrap=0, n_jobs=1).fit(X)
        report = judge(tower)
    official = report.official()
    return {"features": report.features, "label": label.tolist(), "rules": [official[name] for name in LABELS]}


def table_of_shapes(
    n_shapes: int, seed: int = 0, held_out: bool = False
) -> tuple[list[dict[str, float]], Bool[np.ndarray, "shapes 4"], Float[np.ndarray, "shapes 4"]]:
    """Features of generated shapes, their true labels in the order of `assay.shapes.synthetic.LABELS`, and what the
    rules say.
    """
    return as_table([judged(i, seed, held_out) for i in range(n_shapes)])


def as_table(
    rows: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, float]], Bool[np.ndarray, "shapes 4"], Float[np.ndarray, "shapes 4"]]:
    """Features, labels and scores of the rules of `judged` shapes."""
    return [r["features"] for r in rows], np.array([r["label"] for r in rows]), np.array([r["rules"] for r in rows])


def make_table(path: Path, part: int = 0, parts: int = 1) -> bool:
    """Add the shapes that a file of JSON lines does not have yet; whether it then has all."""
    wanted = [(False, i) for i in range(TRAINING)] + [(True, i) for i in range(HELD_OUT)]
    if path.is_file() and not path.read_bytes().endswith(
        b"\n"
    ):  # a line was cut off by a kill: the next is not its end
        with path.open("a") as file:
            file.write("\n")
    done = set(read_lines(path))
    for held_out, i in wanted:
        if (held_out, i) not in done and i % parts == part:
            line = json.dumps({"held_out": held_out, "i": i, **judged(i, 0, held_out)})
            with path.open("a") as file:
                file.write(line + "\n")
    return set(wanted) <= set(read_lines(path))


def read_lines(path: Path) -> dict[tuple[bool, int], dict[str, Any]]:
    """Rows of a file by whether they are held out, and number; a line that was cut off by a kill is left out."""
    found: dict[tuple[bool, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["held_out"], row["i"]] = row
    return found


def predictions(model: ShapeClassifier, rows: Sequence[dict[str, float]]) -> Float[np.ndarray, "shapes 4"]:
    """Probabilities in the order of `assay.shapes.synthetic.LABELS`."""
    found = [model.predict_one(row) for row in rows]
    return np.array([[one[name] for name in LABELS] for one in found])


def main(path: Path, part: int, parts: int) -> None:
    """Make the table; once it is whole, ship it and print how model and rules do on the held-out shapes."""
    from assay.shapes.labels import label_scores

    if not make_table(path, part, parts):
        print("this part is done; the table is not whole yet")
        return
    lines = read_lines(path)
    rows, labels, rules = as_table([lines[False, i] for i in range(TRAINING)])
    write_table(TABLE, rows, labels, rules)
    model = ShapeClassifier().fit(rows, labels)
    unseen, truth, judged_by_rules = as_table([lines[True, i] for i in range(HELD_OUT)])
    plain = np.array([TEMPLATES[i % len(TEMPLATES)] in PLAIN for i in range(HELD_OUT)])
    probabilities = predictions(model, unseen)
    for what, some in (("all", np.ones(HELD_OUT, dtype=bool)), ("plain", plain), ("other", ~plain)):
        for name, scores in (("model", probabilities), ("rules", judged_by_rules)):
            found = label_scores(scores[some], truth[some].astype(np.float64))
            shown = {k: round(found[k], 3) for k in ("macro_f1", "micro_f1", "subset_accuracy", "brier")}
            print(f"{HELD_OUT} held-out shapes, {what} ({int(some.sum())}): {name} {shown}")


if __name__ == "__main__":
    share = sys.argv[sys.argv.index("--part") + 1].split("/") if "--part" in sys.argv else ("0", "1")
    main(Path(sys.argv[1]), int(share[0]), int(share[1]))
