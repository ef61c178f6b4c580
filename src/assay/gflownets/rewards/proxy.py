"""A proxy for peptides: logistic regression on k-mer counts, small enough to fit in seconds and exact to differentiate.

Public fact: the published task scores peptides with a classifier trained on DBAASP, which is not to be had. Our
design: a ridge-penalised logistic regression on counts of single letters and of letter pairs at distances 1 to 4,
with the logarithm of the length; its probability is the reward, floored at 1e-6.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

GAPS = (1, 2, 3, 4)


class KmerProxy(eqx.Module):
    """log of max(probability, floor) of a token sequence (``size`` = padding)."""

    single: Float[Array, " letters"]
    pairs: Float[Array, "gaps letters letters"]
    length: Float[Array, ""]
    bias: Float[Array, ""]
    floor: float = eqx.field(static=True)
    regression: bool = eqx.field(static=True, default=False)

    def score(self, tokens: Int[Array, " length"]) -> Float[Array, ""]:
        """Log odds, or the predicted value of a regression."""
        size = self.single.shape[0]
        there = tokens < size
        safe = jnp.where(there, tokens, 0)
        n = jnp.maximum(there.sum(), 1)
        total = (self.single[safe] * there).sum()
        for i, gap in enumerate(GAPS):
            if tokens.shape[0] > gap:
                both = there[:-gap] & there[gap:]
                total = total + (self.pairs[i][safe[:-gap], safe[gap:]] * both).sum()
        return total / n + self.length * jnp.log(n) + self.bias

    def __call__(self, tokens: Int[Array, " length"]) -> Float[Array, ""]:
        if self.regression:
            return jnp.maximum(self.score(tokens), jnp.log(self.floor))
        return jnp.maximum(jax.nn.log_sigmoid(self.score(tokens)), jnp.log(self.floor))

    @classmethod
    def fit(
        cls,
        tokens: np.ndarray,
        labels: np.ndarray,
        size: int,
        *,
        ridge: float = 1.0,
        floor: float = 1e-6,
        regression: bool = False,
    ) -> KmerProxy:
        """Fit by L-BFGS (classification) or least squares (regression of the log reward)."""
        features = kmer_features(tokens, size)
        scale = features.std(0) + 1e-3
        X = features / scale
        y = np.asarray(labels, np.float64)
        if regression:
            centre, mean = X.mean(0), y.mean()
            A = X - centre
            if A.shape[1] > A.shape[0]:
                w = A.T @ np.linalg.solve(A @ A.T + ridge * np.eye(len(A)), y - mean)
            else:
                w = np.linalg.solve(A.T @ A + ridge * np.eye(A.shape[1]), A.T @ (y - mean))
            b = mean - centre @ w
        else:
            from scipy.optimize import minimize

            def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
                z = X @ theta[:-1] + theta[-1]
                p = 0.5 * (1 + np.tanh(z / 2))
                value = np.logaddexp(0, z).sum() - y @ z + 0.5 * ridge * theta[:-1] @ theta[:-1]
                return value, np.append(X.T @ (p - y) + ridge * theta[:-1], (p - y).sum())

            found = minimize(loss, np.zeros(X.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200})
            w, b = found.x[:-1], found.x[-1]
        w = w / scale
        dtype = jnp.result_type(float)
        pairs = w[size:-1].reshape(len(GAPS), size, size)
        return cls(
            jnp.asarray(w[:size], dtype),
            jnp.asarray(pairs, dtype),
            jnp.asarray(w[-1], dtype),
            jnp.asarray(b, dtype),
            floor,
            regression,
        )


def kmer_features(tokens: Int[np.ndarray, "rows length"], size: int) -> Float[np.ndarray, "rows features"]:
    """Frequencies of letters and of pairs at distances 1..4 (counts over length), and log length."""
    rows = len(tokens)
    n = np.maximum((tokens < size).sum(1), 1)
    single = np.zeros((rows, size))
    for j in range(tokens.shape[1]):
        there = np.flatnonzero(tokens[:, j] < size)
        single[there, tokens[there, j]] += 1
    pairs = np.zeros((len(GAPS), rows, size * size))
    for i, gap in enumerate(GAPS):
        for j in range(tokens.shape[1] - gap):
            there = np.flatnonzero((tokens[:, j] < size) & (tokens[:, j + gap] < size))
            pairs[i, there, tokens[there, j] * size + tokens[there, j + gap]] += 1
    return np.concatenate([single / n[:, None], *(pairs / n[:, None]), np.log(n)[:, None]], axis=1)
