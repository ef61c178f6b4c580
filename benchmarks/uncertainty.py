"""Measures, hull coverage, conformal sets and ensembles against probly, crepes, MAPIE and scikit-learn, on the same
arrays.

    make bench FIELD=uncertainty

The rivals run in an environment of their own (build/peers/uncertainty on Python 3.13, made on the first call; or the
interpreter named by ASSAY_PEER_PYTHON), which this script starts with itself and the arrays; the two sides take turns.
One thread on either side. The last lines are ``uncertainty <what>: ratio <r> target <t> ok|short``; a ratio above 1 is
faster.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "build" / "peers" / "uncertainty"
ROWS, MEMBERS, CLASSES, HULLS = 100_000, 10, 10, 1000
REPEATS = 5


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# -- the rivals' side, run by their interpreter ----------------------------------------------------------------------


def rivals(folder: str) -> None:
    """Answer one request a line: the name of a piece of work; the answer is its seconds (or numbers)."""
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from probly.evaluation.ood import out_of_distribution_detection_auroc
    from probly.evaluation.tasks import selective_prediction
    from probly.metrics import convex_hull_coverage
    from probly.quantification.measure.credal_set import lower_entropy
    from probly.quantification.measure.distribution import (
        conditional_entropy,
        entropy_of_expected_predictive_distribution,
        min_expected_total_variation,
        mutual_information,
    )
    from probly.representation.credal_set.array import ArrayConvexCredalSet
    from probly.representation.credal_set.torch import TorchDistanceBasedCredalSet, TorchProbabilityIntervalsCredalSet
    from probly.representation.distribution.array_categorical import (
        ArrayCategoricalDistributionSample,
        ArrayProbabilityCategoricalDistribution,
    )
    from probly.representation.distribution.torch_categorical import TorchProbabilityCategoricalDistribution
    from probly.utils.quantile import calculate_quantile

    torch.set_num_threads(1)
    data = dict(np.load(Path(folder) / "arrays.npz"))
    members = data["members"]
    sample = ArrayCategoricalDistributionSample(array=ArrayProbabilityCategoricalDistribution(members), sample_axis=1)
    hulls = ArrayConvexCredalSet(array=ArrayProbabilityCategoricalDistribution(data["vertices"]))
    targets = ArrayProbabilityCategoricalDistribution(data["targets"])
    lower, upper = torch.tensor(data["lower"]), torch.tensor(data["upper"])

    def three_entropies() -> float:
        return sum(
            timed(lambda f=f: f(sample))
            for f in (entropy_of_expected_predictive_distribution, conditional_entropy, mutual_information)
        )  # type: ignore[misc]

    def upper_entropies() -> float:
        from probly.quantification.measure.credal_set import upper_entropy

        box = TorchProbabilityIntervalsCredalSet(lower_bounds=lower, upper_bounds=upper)
        return timed(lambda: upper_entropy(box))

    def crepes() -> float:
        from crepes import ConformalClassifier

        p, y, q = data["probs"], data["labels"], data["new"]

        def work() -> None:
            fitted = ConformalClassifier().fit(1 - p[np.arange(len(p)), y])
            fitted.predict_set(1 - q, confidence=0.9, smoothing=False)

        return timed(work)

    def mapie() -> float:
        from mapie.classification import SplitConformalClassifier
        from sklearn.base import BaseEstimator, ClassifierMixin

        class Saved(ClassifierMixin, BaseEstimator):
            """A classifier whose input is its output."""

            def __init__(self) -> None:
                self.classes_ = np.arange(CLASSES)

            def fit(self, X: Any, y: Any) -> Any:
                self.classes_ = np.arange(CLASSES)
                return self

            def predict_proba(self, X: Any) -> Any:
                return X

            def predict(self, X: Any) -> Any:
                return X.argmax(1)

        p, y, q = data["probs"], data["labels"], data["new"]

        def work() -> None:
            made = SplitConformalClassifier(Saved(), confidence_level=0.9, conformity_score="lac", prefit=True)
            made.conformalize(p, y).predict_set(q)

        return timed(work)

    def torchcp() -> dict[str, Any]:
        """Sets of torchcp's scores, not randomised, at a threshold of ours: the masks as they come."""
        import importlib.util
        import types

        # Its package pulls in graph and language models, and a sorting kernel for one loss; only its scores are needed.
        found = importlib.util.find_spec("torchcp")
        package, sorting = types.ModuleType("torchcp"), types.ModuleType("torchsort")
        package.__path__ = list(found.submodule_search_locations)  # type: ignore[union-attr, arg-type]
        sorting.soft_rank = sorting.soft_sort = None  # type: ignore[attr-defined]
        sys.modules.update(torchcp=package, torchsort=sorting)
        from torchcp.classification import score as scores

        p, y, q = (torch.tensor(data[name][:2000]) for name in ("probs", "labels", "new"))
        out: dict[str, Any] = {}
        kinds = {
            "lac": scores.LAC(score_type="identity"),
            "aps": scores.APS(score_type="identity", randomized=False),
            "raps": scores.RAPS(score_type="identity", randomized=False, penalty=0.1, kreg=0),
            "saps": scores.SAPS(score_type="identity", randomized=False, weight=0.1),
        }
        for name, score in kinds.items():
            own = score(p, y).numpy()
            k = int(np.ceil((len(own) + 1) * 0.9 - 1e-9))
            out[name] = (score(q).numpy() <= np.sort(own)[k - 1]).tolist()
        return out

    def checks() -> dict[str, Any]:
        small = TorchProbabilityIntervalsCredalSet(
            lower_bounds=torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64),
            upper_bounds=torch.tensor([[0.3, 0.4, 0.5]], dtype=torch.float64),
        )
        ball = TorchDistanceBasedCredalSet(
            nominal=TorchProbabilityCategoricalDistribution(torch.full((1, 4), 0.25, dtype=torch.float64)),
            radius=torch.tensor([0.2], dtype=torch.float64),
        )
        wrong = np.array([0.0] * 8 + [1.0, 1.0])
        u = np.arange(10.0)
        hundred = (np.arange(100) >= 80).astype(float)
        tied = np.zeros(30)
        errors = np.array([1.0] * 9 + [0.0] * 21)
        return {
            "3b lower entropy of intervals": float(lower_entropy(small)[0]),
            "4 lower entropy of a TV ball": float(lower_entropy(ball)[0]),
            "6 AURC, ten rows (10 bins)": selective_prediction(u, wrong, n_bins=10)[0],
            "6 AURC, constant uncertainty, errors first": selective_prediction(tied, errors, n_bins=30)[0],
            "6 AURC, constant uncertainty, errors last": selective_prediction(tied, errors[::-1], n_bins=30)[0],
            "6 AURC, hundred rows, 20 wrong and most uncertain": selective_prediction(np.arange(100.0), hundred)[0],
            "7 AUROC of constant scores": out_of_distribution_detection_auroc(np.zeros(50), np.zeros(50)),
            "8 quantile of 8 scores at alpha .1": float(calculate_quantile(np.arange(1.0, 9.0), 0.1)),
        }

    work: dict[str, Callable[[], Any]] = {
        "entropy": three_entropies,
        "tv": lambda: timed(lambda: min_expected_total_variation(sample)),
        "hull": lambda: timed(lambda: convex_hull_coverage(hulls, targets, epsilon=0.0005)),
        "upper": upper_entropies,
        "crepes": crepes,
        "mapie": mapie,
        "checks": checks,
        "torchcp": torchcp,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(work[line.strip()]()), flush=True)


# -- our side --------------------------------------------------------------------------------------------------------


def peer_python() -> Path:
    named = os.environ.get("ASSAY_PEER_PYTHON")
    if named:
        return Path(named)
    python = PEER / "bin" / "python"
    if not python.exists():
        subprocess.run([str(base_python()), "-m", "venv", str(PEER)], check=True)
        requirements = ROOT / "benchmarks" / "peers" / "uncertainty.txt"
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([*install, "-r", str(requirements)], check=True)
            # One of its dependencies has to be compiled against torch and is not used by what is compared here.
            subprocess.run([*install, "--no-deps", "torchcp==1.2.1"], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(PEER, ignore_errors=True)  # half an environment would be taken for a whole one
            raise
    return python


def base_python() -> Path:
    """A Python 3.13: on the PATH, or among the versions of pyenv, whose shim answers only where it is selected."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.13"), *map(str, sorted(pyenv.glob("versions/3.13*/bin/python3.13")))]
    for candidate in filter(None, found):
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return Path(candidate)
    raise SystemExit(
        "probly 0.9.1 needs Python 3.13: put python3.13 on the PATH, or name an interpreter with ASSAY_PEER_PYTHON"
    )


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.ensemble import BaggingClassifier
    from sklearn.tree import DecisionTreeClassifier

    from assay.uncertainty import (
        Ensemble,
        Hull,
        Intervals,
        Sample,
        SplitConformal,
        TVBall,
        hull_coverage,
        lower_entropy,
        quantify,
    )
    from assay.uncertainty import metrics as m
    from assay.uncertainty.conformal import conformal_quantile
    from assay.uncertainty.credal import upper_entropy

    rng = np.random.default_rng(0)
    members = rng.dirichlet(np.ones(CLASSES), (ROWS, MEMBERS))
    vertices = rng.dirichlet(np.ones(CLASSES), (HULLS, MEMBERS))
    # Half of the targets are inside their hull, half are other distributions near it.
    weights = rng.dirichlet(np.ones(MEMBERS), HULLS)
    targets = np.einsum("nmk,nm->nk", vertices, weights)
    outside = np.clip(targets + rng.normal(0, 0.02, targets.shape), 1e-9, None)
    targets[::2] = (outside / outside.sum(1, keepdims=True))[::2]
    lower, upper = members.min(1), members.max(1)
    probs, new = members[:, 0], members[:, 1]
    labels = (probs.cumsum(1) < rng.random((ROWS, 1))).sum(1)
    verdicts: list[str] = []

    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder) / "arrays.npz",
            members=members,
            vertices=vertices,
            targets=targets,
            lower=lower,
            upper=upper,
            probs=probs,
            labels=labels,
            new=new,
        )
        peer = subprocess.Popen(
            [str(peer_python()), str(Path(__file__)), "--rivals", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert peer.stdin is not None
        assert peer.stdout is not None

        def ask(what: str) -> Any:
            peer.stdin.write(what + "\n")  # type: ignore[union-attr]
            peer.stdin.flush()  # type: ignore[union-attr]
            return json.loads(peer.stdout.readline())  # type: ignore[union-attr]

        if peer.stdout.readline().strip() != "ready":
            raise SystemExit("the rivals' interpreter did not start; see its message above")

        def race(what: str, ours: Callable[[], Any], rival: str, target: float, repeats: int = REPEATS) -> None:
            ours()
            mine, theirs = [], []
            for _ in range(repeats):
                mine.append(timed(ours))
                theirs.append(ask(rival))
            a, b = statistics.median(mine), statistics.median(theirs)
            print(f"{what:46s} assay {a * 1e3:10.2f} ms   {rival:8s} {b * 1e3:10.2f} ms", flush=True)
            verdicts.append(
                f"uncertainty {what}: ratio {b / a:.1f} target {target:g} {'ok' if b / a >= target else 'short'}"
            )

        checked = members  # the check that rows are distributions is part of our time
        race("entropy TU+AU+EU against probly", lambda: quantify(Sample(checked)), "entropy", 15)
        race("TV epistemic against probly", lambda: quantify(Sample(checked), "tv"), "tv", 10, 3)
        race("hull coverage against probly", lambda: hull_coverage(Hull(vertices), targets), "hull", 40, 3)
        box = Intervals(lower, upper)
        race("upper entropy of intervals against probly", lambda: upper_entropy(box), "upper", 1)
        conformal = lambda: SplitConformal("lac", 0.1).fit(probs, labels).predict(new)  # noqa: E731
        race("conformal fit + predict against crepes", conformal, "crepes", 1, 1)
        race("conformal fit + predict against MAPIE", conformal, "mapie", 1, 3)

        print("\nchecks of the field's known values, both sides:")
        theirs = ask("checks")
        ten, tied = np.array([0.0] * 8 + [1.0, 1.0]), np.array([1.0] * 9 + [0.0] * 21)
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = {
                "3b lower entropy of intervals": lower_entropy(Intervals([[0.1, 0.2, 0.3]], [[0.3, 0.4, 0.5]]))[0],
                "4 lower entropy of a TV ball": lower_entropy(TVBall([[0.25] * 4], 0.2))[0],
                "6 AURC, ten rows (10 bins)": m.aurc(np.arange(10.0), ten),
                "6 AURC, constant uncertainty, errors first": m.aurc(np.zeros(30), tied),
                "6 AURC, constant uncertainty, errors last": m.aurc(np.zeros(30), tied[::-1].copy()),
                "6 AURC, hundred rows, 20 wrong and most uncertain": m.aurc(
                    np.arange(100.0), (np.arange(100) >= 80).astype(float)
                ),
                "7 AUROC of constant scores": m.auroc(np.zeros(50), np.zeros(50)),
                "8 quantile of 8 scores at alpha .1": conformal_quantile(np.arange(1.0, 9.0), 0.1),
            }
        for name, value in theirs.items():
            print(f"  {name:52s} assay {ours[name]:.6f}   probly {value:.6f}")
        theirs = ask("torchcp")
        for name, mask in theirs.items():
            options = {"lam": 0.1, "k_reg": 0} if name == "raps" else {"lam": 0.1} if name == "saps" else {}
            fitted = SplitConformal(name, 0.1, randomized=False, **options).fit(probs[:2000], labels[:2000])
            same = int((fitted.predict(new[:2000]).mask == np.array(mask)).all(1).sum())
            print(f"  {name.upper():4s} sets equal to those of torchcp: {same} of 2000 rows")
        peer.stdin.close()
        peer.wait()

    million = np.tile(lower, (10, 1)), np.tile(upper, (10, 1))
    big = Intervals(*million)
    seconds = statistics.median(timed(lambda: upper_entropy(big)) for _ in range(3))
    print(f"\nupper entropy of 1e6 rows x {CLASSES} classes: {seconds:.2f} s")
    verdicts.append(
        "uncertainty upper entropy of 1e6 rows within 2 s: "
        f"ratio {2 / seconds:.1f} target 1 {'ok' if seconds <= 2 else 'short'}"
    )

    X, y = load_digits(return_X_y=True)
    mine, theirs_fit = [], []
    for _ in range(REPEATS):
        mine.append(timed(lambda: Ensemble(DecisionTreeClassifier(), n=20).fit(X, y).predict(X)))
        theirs_fit.append(
            timed(
                lambda: (
                    BaggingClassifier(DecisionTreeClassifier(), 20, n_jobs=1, random_state=0).fit(X, y).predict_proba(X)
                )
            )
        )
    a, b = statistics.median(mine), statistics.median(theirs_fit)
    print(f"{'20 bagged trees on digits, fit + predict':46s} assay {a * 1e3:10.2f} ms   scikit-learn {b * 1e3:6.2f} ms")
    verdicts.append(
        "uncertainty ensemble against BaggingClassifier: "
        f"ratio {b / a:.2f} target 0.9 {'ok' if b / a >= 0.9 else 'short'}"
    )
    print("\n" + "\n".join(verdicts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rivals"]:
        rivals(sys.argv[2])
    else:
        if sys.argv[1:2] == ["--rows"]:  # a trial of the script; its ratios mean nothing
            ROWS, HULLS = int(sys.argv[2]), 50
        main()
