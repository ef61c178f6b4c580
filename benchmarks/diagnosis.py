"""Cognitive diagnosis against EduCDM and edustudio: the same work on both sides, in one run, one thread.

Install the rivals first: ``pip install --no-deps -r benchmarks/peers/diagnosis.txt`` (or with ``--target`` into a
folder
that is on PYTHONPATH). A rival that is not there is left out, and said so. Real tables come from ASSAY_DATA_DIR;
without
them a simulated platform of the same size takes their place, and is named. ``--large`` adds a log of a million answers.
Times are CPU seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np

from assay.core.errors import DataError
from assay.diagnosis import DINA, GDINA, IRT, NCDM, ResponseData, load, simulate_platform
from assay.diagnosis.metrics import doa_pair_mean, doa_pooled

REPEATS = 3
SIZES = {"frcsub": (536, 20, 8, 1.0), "ecpe": (2922, 28, 3, 1.0), "timss11": (4668, 174, 9, 0.143)}


def table(name: str) -> ResponseData:
    """A public table, or a platform of its size."""
    try:
        return load(name)
    except DataError as error:
        print(f"{name}: simulated instead ({error})")
        s, j, k, density = SIZES[name]
        return simulate_platform(s, j, k, density, seed=0).data


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds (the machine may be busy) and result; what the work prints is swallowed."""
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = work()
    return time.process_time() - start, result


def line(what: str, ratio: float, target: float, *, at_most: bool = False) -> None:
    """The line that is read by machines."""
    met = ratio <= target if at_most else ratio >= target
    print(f"diagnosis {what}: ratio {ratio:.3g} target {target:g} {'ok' if met else 'short'}")


def race_ncdm(data: ResponseData, epochs: int = 2) -> tuple[float, list[float], list[float]]:
    """Training of NCDM with the same layers, dropout, rate and batch: ratio of speeds, losses after each epoch.

    EduCDM takes the loss on float32 probabilities, which saturate at the start; ours is on logits, so its first epoch
    falls
    faster. From the second on the losses agree.
    """
    import torch
    from EduCDM.NCDM.NCDM import NCDM as Rival

    torch.set_num_threads(1)
    q = torch.as_tensor(data.q.toarray(), dtype=torch.float32)
    tensors = torch.utils.data.TensorDataset(
        torch.as_tensor(data.student.astype(np.int64)),
        torch.as_tensor(data.item.astype(np.int64)),
        q[data.item.astype(np.int64)],
        torch.as_tensor(data.correct.astype(np.float32)),
    )

    def theirs() -> list[float]:
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(tensors, batch_size=256, shuffle=True)
        rival = Rival(data.n_kcs, data.n_items, data.n_students)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            rival.train(loader, epoch=epochs, lr=0.002)
        return [float(row.rsplit(" ", 1)[1]) for row in out.getvalue().splitlines() if "average loss" in row]

    def ours() -> tuple[float, list[float]]:
        """CPU seconds until the last epoch is over; the rival does nothing of what follows (errors of mastery)."""
        model = NCDM(stopping=f"fixed({epochs})", batch_size=256, lr=0.002)
        losses: list[float] = []
        ends: list[float] = []

        def note(epoch: int, total: int, figures: dict[str, float]) -> None:
            losses.append(figures["train_loss"])
            ends.append(time.process_time())

        model.report = note
        start = time.process_time()
        model.fit(data)
        return ends[-1] - start, losses

    times: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(REPEATS):
        spent, first = seconds(theirs)
        times["theirs"].append(spent)
        spent, second = ours()
        times["ours"].append(spent)
    a, b = median(times["theirs"]), median(times["ours"])
    n = len(data) * epochs
    print(
        f"NCDM training, {len(data):,} answers, {epochs} epochs: EduCDM {n / a:,.0f} answers/s, ours {n / b:,.0f} "
        "answers/s"
    )
    print(f"  loss after each epoch: EduCDM {np.round(first, 4).tolist()}, ours {np.round(second, 4).tolist()}")
    return a / b, first, second


def race_doa(data: ResponseData) -> float:
    """DOA over all answers, equal values."""
    if importlib.util.find_spec("edustudio") is None:
        raise ImportError("edustudio")
    doa_report = _edustudio_doa()
    mastery = np.random.default_rng(0).random((data.n_students, data.n_kcs))
    q = data.q.toarray()
    theirs, ours = [], []
    for _ in range(REPEATS):
        a, first = seconds(lambda: doa_report(data.student, data.item, data.correct, mastery, q))
        b, second = seconds(lambda: doa_pooled(mastery, data))
        theirs.append(a)
        ours.append(b)
    print(
        f"DOA, {len(data):,} answers: edustudio {median(theirs):.3f} s, ours {median(ours):.3f} s; values "
        f"{first:.10f}, {second:.10f}"
    )
    assert abs(first - second) < 1e-6, "the values differ"
    return median(theirs) / median(ours)


def _edustudio_doa() -> Callable[..., float]:
    """Its report function, from the file alone where the package cannot be imported (it needs more packages)."""
    try:
        from edustudio.evaltpl.interpretability_evaltpl import InterpretabilityEvalTPL as Report
    except ImportError:
        root = Path(importlib.util.find_spec("edustudio").submodule_search_locations[0])  # type: ignore[union-attr,index]
        source = (root / "evaltpl" / "interpretability_evaltpl.py").read_text()
        body = source[source.index("    def doa_report") :]
        names: dict[str, Any] = {}
        exec("import numpy as np\nimport pandas as pd\nclass Report:\n" + body, names)
        Report = names["Report"]
    made = object.__new__(Report)
    return lambda *args: float(made.doa_report(*args))


def plain_em(x: np.ndarray, q: np.ndarray, *, steps: int, until: float) -> tuple[float, int]:
    """DINA by EM over all rows and classes, nothing collapsed or extrapolated: the textbook in numpy."""
    k = q.shape[1]
    classes = (np.arange(2**k)[:, None] >> np.arange(k)) & 1
    eta = (classes @ q.T) == q.sum(1)
    guess, slip, pi = np.full(len(q), 0.2), np.full(len(q), 0.2), np.full(2**k, 2.0**-k)
    value = -np.inf
    step = 0
    while step < steps:
        step += 1
        p = np.clip(np.where(eta, 1 - slip, guess), 1e-10, 1 - 1e-10)
        joint = x @ np.log(p).T + (1 - x) @ np.log(1 - p).T + np.log(np.maximum(pi, 1e-300))
        top = joint.max(1, keepdims=True)
        post = np.exp(joint - top)
        total = post.sum(1, keepdims=True)
        value = float(np.sum(np.log(total) + top))
        if value > until:
            break
        post /= total
        pi = post.mean(0)
        r, n = post.T @ x, post.sum(0)[:, None]
        guess = (r * ~eta).sum(0) / (n * ~eta).sum(0)
        slip = 1 - (r * eta).sum(0) / (n * eta).sum(0)
    return value, step


def race_dina(data: ResponseData) -> dict[str, float]:
    """DINA by EM to the same log-likelihood within 1e-4: against plain numpy and against EduCDM's time an iteration."""
    x, q = data.matrix().astype(np.float64), data.q.toarray().astype(np.int64)
    ours = [seconds(lambda: DINA(monotone=False, tol=1e-6).fit(data)) for _ in range(REPEATS)]
    own, model = median(t for t, _ in ours), ours[0][1]
    plain, (value, steps) = seconds(lambda: plain_em(x, q, steps=5000, until=model.loglik_ - 1e-4))
    print(
        f"DINA, {data.n_students} x {data.n_items}, {2**data.n_kcs} classes: ours {own:.3f} s ({model.loglik_:.4f}), ",
        end="",
    )
    print(f"plain numpy EM {plain:.2f} s for {steps} steps ({value:.4f})")
    found = {"seconds": own, "plain": plain / own}
    if importlib.util.find_spec("EduCDM") is not None:
        from EduCDM.DINA.EM.DINA import DINA as Rival

        rival = Rival(x, q, data.n_students, data.n_items, data.n_kcs)
        few = 5
        spent, _ = seconds(lambda: rival.train(few, 1e-300))
        # it keeps the classes uniform, so it never comes to this likelihood; what it needs for as many steps is
        # what is compared
        print(f"  EduCDM EMDINA {spent / few * 1e3:.1f} ms a step, {spent / few * steps:.2f} s for {steps} steps")
        found["EMDINA"] = spent / few * steps / own
    return found


def main() -> None:
    """All races."""
    frcsub, ecpe, timss = (table(name) for name in ("frcsub", "ecpe", "timss11"))
    lines: list[tuple[Any, ...]] = []
    try:
        ratio, _, _ = race_ncdm(timss)
        lines.append(("NCDM training against EduCDM", ratio, 1.5))
    except ImportError as error:
        print(f"NCDM: left out, {error} is not installed")
    try:
        lines.append(("DOA against edustudio", race_doa(timss), 20))
    except ImportError as error:
        print(f"DOA: left out, {error} is not installed")
    spent, _ = seconds(lambda: doa_pair_mean(np.random.default_rng(0).random((timss.n_students, timss.n_kcs)), timss))
    lines.append(("pair-mean DOA of 4,668 students, seconds", spent, 10, True))
    found = race_dina(frcsub)
    lines.append(("DINA EM on frcsub, seconds", found["seconds"], 1.5, True))
    lines.append(("DINA EM against plain numpy EM", found["plain"], 1))
    if "EMDINA" in found:
        lines.append(("DINA EM against EduCDM EMDINA", found["EMDINA"], 5))
    gdina = median(seconds(lambda: GDINA().fit(ecpe))[0] for _ in range(REPEATS))
    lines.append(("G-DINA EM on ECPE, seconds", gdina, 1.5, True))
    train = timss.split("response", 0).train
    two = median(seconds(lambda: IRT().fit(train))[0] for _ in range(REPEATS))
    lines.append(("2PL on TIMSS, seconds", two, 1.5, True))
    if "--large" in sys.argv:
        lines.extend(large())
    for entry in lines:
        line(entry[0], entry[1], entry[2], at_most=len(entry) > 3)


def large() -> list[tuple[Any, ...]]:
    """A log of a million answers, 10,000 x 1,000."""
    import resource

    rng = np.random.default_rng(0)
    s, j, k = 10_000, 1_000, 50
    cells = rng.choice(s * j, 1_000_000, replace=False)
    student, item = np.divmod(cells, j)
    theta, b = rng.normal(size=s), rng.normal(size=j)
    y = rng.random(len(cells)) < 1 / (1 + np.exp(b[item] - theta[student]))
    q = np.zeros((j, k), dtype=int)
    q[np.arange(j), rng.integers(0, k, j)] = 1
    q[np.arange(k), np.arange(k)] = 1
    data = ResponseData(student, item, y.astype(int), q)
    spent, model = seconds(lambda: IRT().fit(data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"2PL on 1,000,000 answers: {spent:.1f} s, {model.n_iter_} steps, peak of the process {peak:.2f} GB")
    print("neural and graph models on the same log, one epoch:")
    for name in ("NCDM", "KSCD", "RCD", "ORCDF"):
        one_epoch(name, data)
    return [("2PL on 10^6 answers, seconds", spent, 30, True), ("peak memory, GB", peak, 1, True)]


def one_epoch(name: str, data: ResponseData) -> None:
    """CPU seconds of an epoch and peak memory of the fit, errors of mastery included (Linux)."""
    from assay.diagnosis import model_class

    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    split = data.split("student", 0)
    model = model_class(name)(stopping="fixed(1)")
    ends: list[float] = []
    model.report = lambda epoch, total, figures: ends.append(time.process_time())
    start = time.process_time()
    model.fit(split.train, split.valid)
    with open("/proc/self/status", encoding="ascii") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20
    print(
        f"  {name}: {ends[0] - start:.1f} s ({len(split.train):,} training answers), "
        f"fit {time.process_time() - start:.1f} s, peak of the process {peak:.2f} GB"
    )


if __name__ == "__main__":
    main()
