"""What `fluidq.events` is given, and the one place that says whether it can be run."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fluidq._errors import refuse
from fluidq.queue import checked_rates

Rule = tuple[str, Any, Any, str]  # field, value, whether it holds, what would be right


class Setup(NamedTuple):
    """One run; scalars, but for the edges [s] and the inflow of each piece [B/s]. See `fluidq.events.run`."""

    ts: Float[Array, " edges"]
    P: Float[Array, " pieces"]
    C: Float[Array, ""]
    Q0: Float[Array, ""]
    mu: Float[Array, ""]
    workers: Float[Array, ""]
    theta_h: Float[Array, ""]
    theta_l: Float[Array, ""]
    step: Float[Array, ""]
    tau: Float[Array, ""]
    stop_delay: Float[Array, ""]
    hold: Float[Array, ""]
    min_workers: Float[Array, ""]
    max_workers: Float[Array, ""]


def checked(ts: Any, P: Any, pending: str, **given: Any) -> Setup:
    """The arrays of a run. What is known now is checked now; what is traced waits for `at_run_time`.

    Raises:
        InputError: the first field that cannot be used.
    """
    if isinstance(ts, str) or (not isinstance(ts, Sequence) and np.ndim(ts) == 0):
        end = _number("ts", ts)
        ts = jnp.stack([jnp.zeros_like(end), end])
    edges, inflow, _ = checked_rates(ts, P, 0.0)
    defaults = {"theta_h": np.inf, "theta_l": -np.inf, "max_workers": np.inf, "stop_delay": given["tau"]}
    numbers = {name: _number(name, defaults[name] if x is None else x) for name, x in given.items()}
    numbers |= {"ts": edges if isinstance(edges, Tracer) else np.asarray(edges), "P": inflow}
    for name in ("theta_h", "theta_l", "max_workers"):  # None is the only way to say "none"
        if given[name] is not None and not isinstance(numbers[name], Tracer) and not np.isfinite(numbers[name]):
            raise refuse(name, float(numbers[name]), "a finite number, or None for none")
    for field, value, holds, wanted in _rules(SimpleNamespace(**numbers), pending):
        if not isinstance(holds, Tracer) and not bool(holds):
            raise refuse(field, value if isinstance(value, Tracer) else float(value), wanted)
    return Setup(*map(jnp.asarray, Setup(**numbers)))


def at_run_time(setup: Setup, pending: str) -> Setup:
    """The same rules inside a transformation, where values are not known yet: equinox's run-time error, one for all."""
    rules = _rules(setup, pending)
    broken = jnp.stack([~jnp.asarray(holds) for _, _, holds, _ in rules])
    messages = [f"{field} must be {wanted}." for field, _, _, wanted in rules]
    return setup._replace(Q0=eqx.branched_error_if(setup.Q0, broken.any(), jnp.argmax(broken), messages))


def _number(name: str, value: Any) -> Any:
    traced = isinstance(value, Tracer)
    try:
        x = jnp.asarray(value, float) if traced else np.asarray(value, float)
    except (TypeError, ValueError):
        raise refuse(name, value, "one number") from None
    if x.shape != ():
        raise refuse(f"the shape of {name}", x.shape, "(), one number; jax.vmap runs many")
    return x


def _rules(s: Any, pending: str) -> list[Rule]:
    """Comparisons only, so that they read the same for numbers and for tracers; no NaN passes one."""
    inf = np.inf
    start, end = s.ts[0], s.ts[-1]
    rules: list[Rule] = [
        ("the horizon", end - start, end > start, "longer than 0 s: the last edge after the first"),
        ("C", s.C, (s.C >= 0) & (s.C < inf), "a finite capacity >= 0 B"),
        ("Q0", s.Q0, (s.Q0 >= 0) & (s.Q0 <= s.C), "a stock from 0 to the capacity C" + _known(s.C, ", {:g} B")),
        ("mu", s.mu, (s.mu >= 0) & (s.mu < inf), "a finite rate >= 0 B/s per worker"),
        ("step", s.step, (s.step > 0) & (s.step < inf), "a finite number of workers > 0"),
        ("tau", s.tau, (s.tau >= 0) & (s.tau < inf), "a finite time >= 0 s"),
        ("stop_delay", s.stop_delay, (s.stop_delay >= 0) & (s.stop_delay < inf), "a finite time >= 0 s, or None"),
        ("hold", s.hold, (s.hold >= 0) & (s.hold < inf), "a finite time >= 0 s"),
        ("theta_h", s.theta_h, s.theta_h > -inf, "a level [B], or None"),
        ("theta_l", s.theta_l, s.theta_l < s.theta_h, "a level below theta_h" + _known(s.theta_h, ", {:g} B")),
        ("min_workers", s.min_workers, (s.min_workers >= 0) & (s.min_workers < inf), "a finite number >= 0"),
        (
            "workers",
            s.workers,
            (s.workers >= s.min_workers) & (s.workers <= s.max_workers) & (s.workers < inf),
            "a finite number from min_workers" + _known(s.min_workers, ", {:g},") + " to max_workers",
        ),
    ]
    if pending == "hold":
        some = (s.tau + s.hold > 0) & (s.stop_delay + s.hold > 0)
        rules.append(("hold", s.hold, some, "> 0 s where an order acts at once: else orders follow without end"))
    return rules


def _known(x: Any, form: str) -> str:
    return "" if isinstance(x, Tracer) else form.format(float(x))
