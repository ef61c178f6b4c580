"""Transformations of Flax (linen) modules: ensembles and MC-Dropout; calibration and conformal sets take their
probabilities as they are.

The module maps ``(n, D)`` to ``(n, K)`` logits. For `FlaxDropout` it must use `flax.linen.Dropout` itself and take
``train: bool``, as Flax modules do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from assay.uncertainty.errors import NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import Sample
from assay.uncertainty.representations.base import row_names


class FlaxMLP(nn.Module):
    """Dense layers with ReLU, and dropout before each but the first.

    Parameters
    ----------
    n_out : int
    hidden : tuple of int
    p : float
    """

    n_out: int
    hidden: tuple[int, ...] = (64, 64)
    p: float = 0.0

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        """Logits."""
        for i, width in enumerate(self.hidden):
            if i and self.p:
                x = nn.Dropout(self.p, deterministic=not train)(x)
            x = nn.relu(nn.Dense(width)(x))
        if self.p:
            x = nn.Dropout(self.p, deterministic=not train)(x)
        return nn.Dense(self.n_out)(x)


class _FlaxMethod(BaseEstimator):
    """Training shared by both: Adam, whole epochs under one jit, explicit keys."""

    make: Callable[[int], nn.Module] | None
    epochs: int
    lr: float
    batch_size: int
    seed: int

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Train; y are labels ``(n)`` or distributions ``(n, K)``.

        Raises
        ------
        TargetShape, UncertaintyError
        """
        x, target = np.asarray(X, dtype=np.float32), np.asarray(y)
        if len(x) != len(target) or target.ndim not in (1, 2):
            raise TargetShape(f"{len(x)} rows and targets of shape {target.shape}")
        if not np.isfinite(x).all():
            raise UncertaintyError("X holds NaN or infinity; impute it first")
        if target.ndim == 1:
            self.classes_, codes = np.unique(target, return_inverse=True)
            target = np.eye(len(self.classes_))[codes]
        else:
            self.classes_ = np.arange(target.shape[1])
        self.center_, spread = x.mean(0), x.std(0)
        self.scale_ = np.where(spread > 1e-8, spread, 1)
        self._fit(jnp.asarray((x - self.center_) / self.scale_), jnp.asarray(target, dtype=jnp.float32))
        return self

    def predict(self, X: ArrayLike) -> Sample:
        """A sample of the members (draws)."""
        if not hasattr(self, "classes_"):
            raise NotFitted("call fit(X, y) first")
        x = jnp.asarray((np.asarray(X, dtype=np.float32) - self.center_) / self.scale_)
        return Sample(np.asarray(self._members(x), dtype=np.float64), axis=0).named(
            self.classes_.tolist(), row_names(X)
        )

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Mean of the members."""
        return np.asarray(self.predict(X).mean())

    def _fit(self, x: Any, t: Any) -> None:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover

    def _members(self, x: Any) -> Any:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover

    def _module(self) -> nn.Module:
        return (self.make or FlaxMLP)(len(self.classes_))

    def _trained(self, module: nn.Module, x: Any, t: Any, key: Any) -> Any:
        start, run = jax.random.split(key)
        params = module.init(start, x[:1])
        optimizer = optax.adam(self.lr)
        size = min(self.batch_size, len(x))
        n = len(x) // size * size

        def loss(p: Any, batch: Any, k: Any) -> Any:
            logits: Any = module.apply(p, batch[0], rngs={"dropout": k}, **self._apply_options())
            return -(batch[1] * jax.nn.log_softmax(logits)).sum(-1).mean()

        def step(state: Any, given: Any) -> tuple[Any, None]:
            p, o = state
            rows, k = given
            updates, o = optimizer.update(jax.grad(loss)(p, (x[rows], t[rows]), k), o)
            return (optax.apply_updates(p, updates), o), None

        def epoch(state: Any, k: Any) -> tuple[Any, None]:
            order, noise = jax.random.split(k)
            rows = jax.random.permutation(order, len(x))[:n].reshape(-1, size)
            return jax.lax.scan(step, state, (rows, jax.random.split(noise, len(rows))))

        (params, _), _ = jax.lax.scan(epoch, (params, optimizer.init(params)), jax.random.split(run, self.epochs))
        return params

    def _apply_options(self) -> dict[str, Any]:
        return {}


class FlaxEnsemble(_FlaxMethod):
    """Members with different initial weights and orders of the data, trained together under `jax.vmap`.

    Parameters
    ----------
    make : callable, optional
        ``n_classes -> module``; default `FlaxMLP`.
    n, epochs, lr, batch_size, seed
        As usual.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> rep = FlaxEnsemble(n=4, epochs=30).fit(X[::2], y[::2]).predict(X[1::2])
    >>> rep, bool((rep.predict() == y[1::2]).mean() > 0.9)
    (Sample(batch [89], 4 members, 3 classes), True)
    """

    def __init__(
        self,
        make: Callable[[int], nn.Module] | None = None,
        *,
        n: int = 10,
        epochs: int = 60,
        lr: float = 3e-3,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        self.make, self.n, self.epochs, self.lr, self.batch_size, self.seed = make, n, epochs, lr, batch_size, seed

    def _fit(self, x: Any, t: Any) -> None:
        module = self._module()
        keys = jax.random.split(jax.random.key(self.seed), self.n)
        self.params_ = jax.jit(jax.vmap(lambda k: self._trained(module, x, t, k)))(keys)

    def _members(self, x: Any) -> Any:
        module = self._module()
        apply: Any = module.apply
        return jax.vmap(lambda p: jax.nn.softmax(apply(p, x)))(self.params_)


class FlaxDropout(_FlaxMethod):
    """MC-Dropout: the module's own dropout layers stay on when predicting. A pass has one key; its masks are per row.

    Parameters
    ----------
    make : callable, optional
        ``n_classes -> module`` whose call takes ``train``; default `FlaxMLP` with ``p``.
    p : float
    passes, epochs, lr, batch_size, seed
        As usual.
    """

    def __init__(
        self, make: Callable[[int], nn.Module] | None = None, *, p: float = 0.5, passes: int = 100, epochs: int = 60,
        lr: float = 3e-3, batch_size: int = 64, seed: int = 0,
    ) -> None:  # fmt: skip
        self.make, self.p, self.passes, self.epochs = make, p, passes, epochs
        self.lr, self.batch_size, self.seed = lr, batch_size, seed

    def _module(self) -> nn.Module:
        return self.make(len(self.classes_)) if self.make is not None else FlaxMLP(len(self.classes_), p=self.p)

    def _apply_options(self) -> dict[str, Any]:
        return {"train": True}

    def _fit(self, x: Any, t: Any) -> None:
        module = self._module()
        self.params_ = jax.jit(lambda k: self._trained(module, x, t, k))(jax.random.key(self.seed))

    def _members(self, x: Any) -> Any:
        module = self._module()
        keys = jax.random.split(jax.random.fold_in(jax.random.key(self.seed), 1), self.passes)
        apply: Any = module.apply
        draw: Any = lambda k: jax.nn.softmax(apply(self.params_, x, train=True, rngs={"dropout": k}))  # noqa: E731
        return jax.lax.map(draw, keys)
