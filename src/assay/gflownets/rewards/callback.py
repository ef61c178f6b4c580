"""A reward that is a Python function: called once a batch on the host, remembered on disk by object."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from assay.gflownets.errors import GFlowNetError, NonPositiveReward, RewardShape


class HostReward:
    """Makes a Python function of a list of objects usable inside a compiled training step.

    Equal objects are asked once; with ``cache`` they are asked once ever.

    Parameters
    ----------
    function : callable
        ``list of objects -> numbers``, one an object: log rewards, or rewards with ``log=False``.
    decode : callable
        ``batch of views -> list of objects``.
    log : bool
        Whether the function gives logarithms.
    floor : float, optional
        Least reward (not logarithm); smaller, zero and negative ones are raised to it. NaN stays an error.
    cache : path, optional
        SQLite file of known values, keyed by a hash of the object's text form.

    Raises
    ------
    NonPositiveReward, RewardShape
        From `values` at once; in training, `raise_pending` raises it after the step that met it.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        decode: Callable[[Any], list[Any]],
        *,
        log: bool = True,
        floor: float | None = None,
        cache: str | Path | None = None,
    ) -> None:
        if floor is not None and not floor > 0:
            raise GFlowNetError(f"floor must be a positive reward, not {floor}")
        self.function, self.decode, self.log, self.floor = function, decode, log, floor
        self.cache = Path(cache) if cache is not None else None
        self.calls = 0  # objects that the function was asked about
        self._error: Exception | None = None
        self._known: dict[Any, float] = {}

    def values(self, objects: Sequence[Any]) -> Float[np.ndarray, " objects"]:
        """Log rewards of objects, ``float64``."""
        keys = [_key(o) for o in objects]
        new = {k: o for k, o in zip(keys, objects, strict=True) if k not in self._known}
        if new and self.cache is not None:
            self._read(new)
        ask = {k: o for k, o in new.items() if k not in self._known}
        if ask:
            found = self._ask(list(ask.values()))
            self._known.update(zip(ask, found.tolist(), strict=True))
            if self.cache is not None:
                self._write({k: self._known[k] for k in ask})
        return np.array([self._known[k] for k in keys])

    def _ask(self, objects: list[Any]) -> np.ndarray:
        self.calls += len(objects)
        try:
            found = np.asarray(self.function(objects), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise RewardShape(
                f"the reward raised {type(error).__name__} or gave no numbers for {len(objects)} objects: {error}"
            ) from error
        if found.shape != (len(objects),):
            raise RewardShape(
                f"the reward of {len(objects)} objects must be {len(objects)} numbers in one dimension, not "
                f"{found.shape}"
            )
        if not self.log:
            if self.floor is not None:
                found = np.where(np.isnan(found), found, np.maximum(found, self.floor))
            bad = ~(np.isfinite(found) & (found > 0))
        else:
            if self.floor is not None:
                found = np.where(np.isnan(found), found, np.maximum(found, math.log(self.floor)))
            bad = ~np.isfinite(found)
        if bad.any():
            i = int(np.argmax(bad))
            what = "log reward" if self.log else "reward"
            raise NonPositiveReward(
                f"the {what} of {objects[i]!r} is {found[i]}; rewards must be positive and finite. Give floor= "
                f"to raise "
                "small ones, or leave such objects out with a constraint"
            )
        return found if self.log else np.log(found)

    def batched(self, views: Any) -> Array:
        """Log rewards of a batch of views, inside compiled code."""
        size = jax.tree.leaves(views)[0].shape[0]
        dtype = jax.numpy.result_type(float)

        def host(batch: Any) -> np.ndarray:
            batch = jax.tree.map(np.asarray, batch)
            lead = jax.tree.leaves(batch)[0].shape
            try:
                return self.values(self.decode(batch)).astype(dtype)
            except Exception as error:  # an exception may not cross compiled code: kept, and raised after the step
                self._error = error
                return np.full(lead[:1], np.nan, dtype)

        return jax.pure_callback(host, jax.ShapeDtypeStruct((size,), dtype), views, vmap_method="sequential")

    def raise_pending(self) -> None:
        """Raise what the function raised during a compiled step."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _connect(self) -> sqlite3.Connection:
        assert self.cache is not None
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.cache, timeout=60)
        connection.execute("create table if not exists rewards (object text primary key, log_reward real)")
        return connection

    def _read(self, wanted: dict[str, Any]) -> None:
        connection = self._connect()
        try:
            for start in range(0, len(wanted), 500):
                part = list(wanted)[start : start + 500]
                rows = connection.execute(
                    f"select object, log_reward from rewards where object in ({','.join('?' * len(part))})", part
                )
                self._known.update(rows.fetchall())
        finally:
            connection.close()

    def _write(self, found: dict[str, float]) -> None:
        connection = self._connect()
        try:
            with connection:
                connection.executemany("insert or replace into rewards values (?, ?)", list(found.items()))
        finally:
            connection.close()


def _key(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
