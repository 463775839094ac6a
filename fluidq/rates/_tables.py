"""Rates from a grid of times: linear between its points, and an error or a stated clamp outside."""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Real

from fluidq._errors import refuse
from fluidq._numerics import ratio
from fluidq._types import Scalar
from fluidq.rates._interface import AbstractRates, Numbers
from fluidq.units import Number

Points = Real[ArrayLike, "_"] | Sequence[Number]
Outside = str  # "refuse" or "clamp"; checked when a table is made


class Curves(eqx.Module):
    """z(x, y) as one curve over x for each tabulated y, linear along x and between neighbouring curves.

    The curves need not share their x: measured batches differ from context to context. Made by `Curves.of`.

    Attributes:
        y: rows of the table, increasing.
        x, z: points of each row's curve, x increasing; short rows are continued flat.
        last: the largest tabulated x of each row.
        names: what x, y and z are, for messages.
    """

    y: Float[Array, " rows"]
    x: Float[Array, "rows points"]
    z: Float[Array, "rows points"]
    last: Float[Array, " rows"]
    names: tuple[str, str, str] = eqx.field(static=True)
    outside: Outside = eqx.field(static=True, default="refuse")

    @classmethod
    def of(
        cls,
        x: Points,
        y: Points,
        z: Points,
        names: tuple[str, str, str] = ("x", "y", "z"),
        outside: Outside = "refuse",
        monotone: bool = False,
    ) -> "Curves":
        """The table of scattered points (x, y, z); equal (x, y) are averaged.

        Args:
            outside: "refuse" a query that the table does not cover, or "clamp" it to the edge of what it covers.
            monotone: replace each curve by the nearest one (least squares) that does not fall along x.

        Raises:
            InputError: no points, arrays of different length, or values that are not finite and >= 0.
        """
        if outside not in ("refuse", "clamp"):
            raise refuse("outside", outside, "'refuse' or 'clamp'")
        xs, ys, zs = (np.asarray(v, dtype=float) for v in (x, y, z))
        for name, values in zip(names, (xs, ys, zs), strict=True):
            if values.ndim != 1 or values.shape != zs.shape or not values.size:
                raise refuse(name, f"{values.size} values", f"one per point, and one at least; {names[2]}: {zs.size}")
            bad = ~(np.isfinite(values) & (values >= 0))
            if bad.any():
                first = int(np.argmax(bad))
                raise refuse(f"{name}, point {first + 1}", float(values[first]), "a finite number >= 0")
        rows = []
        for level in np.unique(ys):
            here = ys == level
            grid, place = np.unique(xs[here], return_inverse=True)
            counts = np.bincount(place)
            mean = np.bincount(place, weights=zs[here]) / counts
            rows.append((grid, _not_falling(mean, counts) if monotone else mean))
        width = max(2, *(grid.size for grid, _ in rows))
        made_x, made_z = np.zeros((len(rows), width)), np.zeros((len(rows), width))
        for i, (grid, mean) in enumerate(rows):
            extra = width - grid.size
            made_x[i] = np.concatenate([grid, grid[-1] + np.arange(1, extra + 1)])
            made_z[i] = np.concatenate([mean, np.full(extra, mean[-1])])
        return cls(
            y=jnp.asarray(np.unique(ys)),
            x=jnp.asarray(made_x),
            z=jnp.asarray(made_z),
            last=jnp.asarray([grid[-1] for grid, _ in rows]),
            names=names,
            outside=outside,
        )

    def __call__(self, x: Numbers, y: Numbers) -> Array:
        """z at (x, y); arrays broadcast.

        Raises:
            InputError: a value outside the table (under `jit`: equinox's run-time error with the same words).
        """
        xs, ys = jnp.broadcast_arrays(jnp.asarray(x, float), jnp.asarray(y, float))
        low, high = self._around(ys)
        if self.outside == "refuse":
            xs, ys = self._covered(xs, ys, low, high)
        below, above = self._along(low, xs), self._along(high, xs)
        share = jnp.clip(ratio(ys - self.y[low], self.y[high] - self.y[low]), 0.0, 1.0)
        return below + share * (above - below)

    def _around(self, y: Array) -> tuple[Array, Array]:
        high = jnp.clip(jnp.searchsorted(self.y, y, side="left"), 0, self.y.size - 1)
        exact = self.y[high] <= y
        return jnp.where(exact, high, jnp.maximum(high - 1, 0)), high

    def _along(self, row: Array, x: Array) -> Array:
        """The curve of each row at x, flat beyond its ends."""
        xs, zs = self.x[row], self.z[row]
        after = jnp.clip((xs <= x[..., None]).sum(axis=-1, keepdims=True), 1, xs.shape[-1] - 1)
        x_0, x_1, z_0, z_1 = (
            jnp.take_along_axis(values, at, axis=-1)[..., 0] for values in (xs, zs) for at in (after - 1, after)
        )
        return z_0 + jnp.clip((x - x_0) / (x_1 - x_0), 0.0, 1.0) * (z_1 - z_0)

    def _covered(self, x: Array, y: Array, low: Array, high: Array) -> tuple[Array, Array]:
        least = jnp.maximum(self.x[low, 0], self.x[high, 0])
        most = jnp.minimum(self.last[low], self.last[high])
        slack = 1e-9
        bad_y = (y < self.y[0] * (1 - slack)) | (y > self.y[-1] * (1 + slack))
        bad_x = (x < least * (1 - slack)) | (x > most * (1 + slack))
        words = "inside the table; make it with outside='clamp' to use its edge instead"
        if any(isinstance(value, Tracer) for value in (x, y, self.y)):
            x = eqx.error_if(x, bad_x, f"{self.names[0]} must be {words}.")
            return x, eqx.error_if(y, bad_y, f"{self.names[1]} must be {words}.")
        for name, bad, values, ends in (
            (self.names[1], bad_y, y, (self.y[0], self.y[-1])),
            (self.names[0], bad_x, x, (least, most)),
        ):
            if bool(bad.any()):
                first = int(jnp.argmax(bad.ravel()))
                start, end = (float(jnp.broadcast_to(e, bad.shape).ravel()[first]) for e in ends)
                raise refuse(name, float(values.ravel()[first]), f"from {start:g} to {end:g}, {words}")
        return x, y


def _not_falling(z: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The nearest curve that never falls: pool neighbours that do, until none does."""
    pools: list[list[float]] = []
    for value, mass in zip(z, weight, strict=True):
        pools.append([float(value), float(mass), 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value_b, mass_b, n_b = pools.pop()
            value_a, mass_a, n_a = pools.pop()
            mass_ab = mass_a + mass_b
            pools.append([(value_a * mass_a + value_b * mass_b) / mass_ab, mass_ab, n_a + n_b])
    return np.concatenate([np.full(int(n), value) for value, _, n in pools])


class TabledRates(AbstractRates):
    """Rates read off tables of times.

    Attributes:
        passes: time of a prefill pass [s] over (prompts in the pass, isl [tok]).
        steps: time of a decode step [s] over (batch per GPU, context [tok]).
        prefill_gpus: GPUs of a prefill worker.
    """

    passes: Curves
    steps: Curves
    prefill_gpus: Scalar = 1.0

    @classmethod
    def of(
        cls,
        prefill: Mapping[str, Points],
        step: Mapping[str, Points],
        prefill_gpus: Scalar = 1.0,
        outside: Outside = "refuse",
        monotone: bool = True,
    ) -> "TabledRates":
        """Tables of `prefill` = {prompts, isl, time} and `step` = {batch, context, time}.

        Outside of them a query is an error, or is clamped to their edge: a pass of more prompts than tabulated then
        takes as long as that many full ones one after the other, and a part of a prompt its share of the time.
        """
        for name, table, columns in (
            ("prefill", prefill, ("prompts", "isl", "time")),
            ("step", step, ("batch", "context", "time")),
        ):
            if set(table) != set(columns):
                raise refuse(name, sorted(table), f"the columns {', '.join(columns)}")
        return cls(
            passes=Curves.of(
                prefill["prompts"], prefill["isl"], prefill["time"], ("prompts", "isl", "time"), outside, monotone
            ),
            steps=Curves.of(
                step["batch"], step["context"], step["time"], ("batch", "context", "time"), outside, monotone
            ),
            prefill_gpus=prefill_gpus,
        )

    def worker_gpus(self) -> Scalar:
        """GPUs of a prefill worker, over which its passes are spread."""
        return self.prefill_gpus

    def empty_pass(self) -> Array:
        """Time [s] that a prefill pass takes before its first token: here that of the shortest tabulated."""
        return self.passes.z[0, 0]

    def prefill_time(self, tokens: Numbers, isl: Numbers) -> Array:
        """Time [s] of one pass of a prefill worker over `tokens` [tok] that belong to prompts of `isl` [tok] each."""
        prompts = ratio(tokens, isl, empty=1.0)
        if self.passes.outside == "refuse":
            return self.passes(prompts, isl)
        _, high = self.passes._around(jnp.asarray(isl, float))
        inside = jnp.clip(prompts, self.passes.x[high, 0], self.passes.last[high])
        return self.passes(inside, isl) * prompts / inside

    def step_time(self, batch: Numbers, context: Numbers) -> Array:
        """Time [s] of a decode step with `batch` sequences per GPU at mean `context` [tok]."""
        return self.steps(batch, context)
