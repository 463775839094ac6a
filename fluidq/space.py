"""What a search may move: parameters of a policy and of its fleet, by name, as coordinates without constraints.

A parameter in a finite range is a log-odds; one with a lower end alone a softplus above it, in units of its own size
(the value that the search starts from); one that must exceed another is a gap above that other (cumulative softplus),
so every point of R^n is a policy that keeps its order and its bounds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fluidq._errors import InputError, refuse, unknown
from fluidq.fleet import Fleet
from fluidq.policies.base import Tunable

# Numbers of the fleet that can be freed by name: where each lies, and how it may move.
FLEET: dict[str, tuple[str, Tunable]] = {
    "fleet.initial_ratio": ("initial_ratio", Tunable("share")),
    "fleet.initial_gpus": ("initial_gpus", Tunable("positive")),
    "fleet.buffer": ("plant.capacity", Tunable("positive")),
    "fleet.buffer_per_gpu": ("plant.capacity_per_gpu", Tunable("positive")),
}

ENDS = {
    "positive": (0.0, math.inf),
    "share": (0.0, 1.0),
    "percent": (0.0, 100.0),
    "real": (-math.inf, math.inf),
    "above": (0.0, math.inf),
}

# A coordinate this far out is a parameter at its bound: 3e-3 of the range, or of its size, is left.
AT_BOUND = 6.0
# Where a search starts from a value on a bound, it starts beside it: the bound itself lies at infinity.
BESIDE = 1e-6


class Parameter(eqx.Module):
    """One free parameter.

    Attributes:
        name, over: its own, and what it must exceed ("" for nothing). low, high: its range, `inf` for no end.
        size: the unit of its coordinate. shape: () but for the arrays of weights of a network.
        ended: which ends are finite; as the names and the shape part of the program, which the numbers are not.
    """

    name: str = eqx.field(static=True)
    low: Any
    high: Any
    over: str = eqx.field(static=True)
    size: Any
    shape: tuple[int, ...] = eqx.field(static=True, default=())
    ended: tuple[bool, bool] = eqx.field(static=True, default=(False, False))

    @property
    def width(self) -> int:
        """Coordinates that it takes."""
        return math.prod(self.shape)


class Space(eqx.Module):
    """The free parameters of a policy on a fleet; made by `make_space`.

    Attributes:
        parameters: in the order of the coordinates; one that must exceed another comes after it.
        policy, fleet: everything else, as it stays; `fleet` is None where a problem needs none (`fluidq.watched`).
    """

    parameters: tuple[Parameter, ...]
    policy: Any
    fleet: Any

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(p.name for p in self.parameters)

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per coordinate: an array's entries are numbered."""
        return tuple(
            p.name if not p.shape else f"{p.name}[{', '.join(map(str, index))}]"
            for p in self.parameters
            for index in np.ndindex(*p.shape)
        )

    def start(self) -> Float[Array, " parameters"]:
        """The coordinates of the policy and fleet that the space was made from."""
        return self.coordinates({name: _value(self.policy, self.fleet, name) for name in self.names})

    def coordinates(self, values: Mapping[str, Any]) -> Float[Array, " parameters"]:
        """Coordinates of these values, one per free parameter. A value on or over a bound comes out just inside."""
        out = []
        for p in self.parameters:
            low, high = self._ends(p, values)
            x = jnp.asarray(values[p.name], dtype=jnp.float64)
            out.append(jnp.ravel(_to_line(x, low, high, p)))
        return jnp.concatenate(out)

    def values(self, u: Float[Array, " parameters"]) -> dict[str, Array]:
        """The parameters at the coordinates `u`."""
        out: dict[str, Any] = {}
        first = 0
        for p in self.parameters:
            low, high = self._ends(p, out)
            out[p.name] = _from_line(u[first : first + p.width].reshape(p.shape), low, high, p)
            first += p.width
        return out

    def at(self, u: Float[Array, " parameters"]) -> tuple[Any, Any]:
        """The policy and the fleet at the coordinates `u`; traced where `u` is."""
        policy, fleet = self.policy, self.fleet
        for name, value in self.values(u).items():
            if name in FLEET:
                fleet = _replaced(fleet, FLEET[name][0], value)
            else:
                policy = _replaced(policy, name, value)
        return policy, fleet

    def plain(self, u: Float[Array, " parameters"]) -> tuple[Any, Any]:
        """`at`, with plain numbers: what is reported, written to files and replayed."""
        policy, fleet = self.at(u)
        number = lambda x: float(x) if eqx.is_array(x) and jnp.ndim(x) == 0 else x  # noqa: E731
        return jax.tree.map(number, policy), jax.tree.map(number, fleet)

    def at_bounds(self, u: Float[Array | np.ndarray, " parameters"]) -> tuple[str, ...]:
        """Names of the parameters that lie at an end of their range, with the end."""
        out = []
        owners = [p for p in self.parameters for _ in range(p.width)]
        for p, x in zip(owners, np.asarray(u), strict=True):
            if p.shape:
                continue
            if x < -AT_BOUND:
                out.append(f"{p.name} at its lower end" + (f", {p.over}" if p.over else f", {p.low:g}"))
            elif x > AT_BOUND and math.isfinite(p.high):
                out.append(f"{p.name} at its upper end, {p.high:g}")
        return tuple(out)

    def _ends(self, p: Parameter, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Lower and upper end where the parameters before this one are as in `values`."""
        if not p.over:
            return p.low, p.high
        other = values[p.over] if p.over in values else _value(self.policy, self.fleet, p.over)
        return jnp.maximum(p.low, other), p.high


def tunables(policy: Any, fleet: Fleet | None = None) -> dict[str, Tunable]:
    """Every parameter that could move, by name: the policy's own, then with a `fleet` those of `FLEET`.

    A parameter that the policy leaves out (None, or a pool without a law) or that is infinite is not among them.
    """
    out = {}
    for name in policy.movable():
        tunable = type(policy).TUNABLE[name]
        value = find(policy, name)
        if value is not None and (isinstance(value, Tracer) or np.all(np.isfinite(np.asarray(value, dtype=float)))):
            out[name] = tunable
    if fleet is not None:
        out |= {name: tunable for name, (_, tunable) in FLEET.items()}
    return out


def make_space(
    policy: Any,
    fleet: Fleet | None = None,
    *,
    free: Sequence[str] | None = None,
    fixed: Sequence[str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Space:
    """The search space of a policy on a fleet (or of anything with `TUNABLE` and `movable`, without a fleet).

    Arguments:
        free: names that may move: the policy's `TUNABLE` (dotted for laws per pool: "prefill.target") and `FLEET`'s;
            None for all of the policy's own and none of the fleet's.
        fixed: names among these that stay. bounds: lowest and highest value by name, `inf` for none; a name that is
            bounded is free.

    Raises InputError for a name that the policy lacks, one both free and fixed, bounds that contradict each other, the
    parameter's kind or the order, a start outside its bounds, and where nothing is left to move.
    """
    bounds = dict(bounds or {})
    own, every = tunables(policy), tunables(policy, fleet)
    for names, where in ((free or (), "free"), (fixed, "fixed"), (bounds, "bounds")):
        for name in names:
            if name not in every:
                _explain(policy, name, every)
            if where != "fixed" and name in fixed:
                raise refuse(f"parameters.{name}", "fixed", f"not at the same time in {where}")
    chosen = [*(own if free is None else free), *bounds]
    names = [name for name in every if name in chosen and name not in fixed]
    if not names:
        raise refuse("parameters", "nothing free", f"at least one of {', '.join(every)}")
    parameters = []
    for name in _in_order(names, every):
        parameters.append(_parameter(policy, fleet, name, every[name], names, bounds))
    space = Space(tuple(parameters), policy, fleet)
    _check_order(space, bounds)
    return space


def _parameter(
    policy: Any,
    fleet: Any,
    name: str,
    tunable: Tunable,
    names: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
) -> Parameter:
    low, high = policy.ranges().get(name, ENDS[tunable.kind])
    if name == "fleet.initial_gpus":  # a fleet starts with one worker of each pool at least, within its budget
        low, high = float(fleet.min_workers * sum(map(float, fleet.per_worker))), float(fleet.budget)
    value = _value(policy, fleet, name)
    shape = tuple(jnp.shape(value))
    if shape:
        if tunable.kind != "real" or name in bounds:
            raise refuse(f"parameters.{name}", "bounded", "left without bounds: it is an array of weights")
        return Parameter(name, low, high, "", 1.0, shape)  # without ends
    if name in bounds:
        ask = f"parameters.{name}"
        first, last = (float(x) for x in bounds[name])
        if math.isnan(first) or math.isnan(last) or not first < last:
            raise refuse(ask, f"{first:g} .. {last:g}", "a lowest value below a highest one")
        if first < low or last > high:
            raise refuse(ask, f"{first:g} .. {last:g}", f"within {low:g} .. {high:g}, what this parameter can be")
        low, high = first, last
        if not low <= value <= high:
            raise refuse(ask, f"{low:g} .. {high:g}", f"a range that holds the start, {value:g}")
    over = tunable.other if tunable.kind == "above" else ""
    below = [n for n in names if n != name and _tunable(policy, n).other == name]
    for other in below:  # this one must stay below the highest that what lies above it may be
        high = min(high, bounds[other][1] if other in bounds else math.inf)
    if not below and over == "" and not math.isfinite(high):
        # A fixed parameter that must exceed this one is its upper end.
        for n, t in tunables(policy).items():
            if t.other == name and n not in names:
                high = min(high, float(_value(policy, fleet, n)))
    if over and over not in names:
        low = max(low, float(_value(policy, fleet, over)))
    size = _size(policy, fleet, name, value, low, over, names)
    ended = math.isfinite(low) or over in names, math.isfinite(high)
    return Parameter(name, low, high, over if over in names else "", size, (), ended)


def _size(policy: Any, fleet: Any, name: str, value: float, low: float, over: str, names: Sequence[str]) -> float:
    """The unit of a softplus coordinate: the distance of the start from its lower end, or 1 where that is none."""
    base = _value(policy, fleet, over) if over in names else low
    distance = value - base if math.isfinite(base) else abs(value)
    return distance if distance > 0 else 1.0


def _check_order(space: Space, bounds: Mapping[str, tuple[float, float]]) -> None:
    for p in space.parameters:
        if not p.low < p.high:
            where = f"{p.low:g} .. {p.high:g}"
            raise refuse(f"parameters.{p.name}", where, "a range that leaves room between what lies below and above it")
        if p.over and p.over in bounds and not bounds[p.over][0] < p.high:
            other = f"{p.over}, which is at least {bounds[p.over][0]:g}"
            raise refuse(f"parameters.{p.name}", f"at most {p.high:g}", f"able to exceed {other}")


def _in_order(names: Sequence[str], every: Mapping[str, Tunable]) -> list[str]:
    """The names, one that must exceed another after that other."""
    out: list[str] = []

    def add(name: str) -> None:
        other = every[name].other
        if other in names and other not in out:
            add(other)
        if name not in out:
            out.append(name)

    for name in names:
        add(name)
    return out


def _explain(policy: Any, name: str, every: Mapping[str, Tunable]) -> None:
    """Raise for a name that cannot move: what the policy lacks, or has and leaves out."""
    if name in type(policy).TUNABLE and name not in policy.movable():
        raise refuse(
            f"parameters.{name}", "free", f"left out: {type(policy).__name__} does not read it as it is set up"
        )
    if name in type(policy).TUNABLE:
        value = find(policy, name)
        raise refuse(f"parameters.{name}", value, f"a finite number in {type(policy).__name__} before it can move")
    raise InputError(f"parameters: {unknown(f'parameter of {type(policy).__name__}', name, every)}")


def _tunable(policy: Any, name: str) -> Tunable:
    return FLEET[name][1] if name in FLEET else type(policy).TUNABLE[name]


def find(tree: Any, path: str) -> Any:
    """What lies at a dotted path (a number is an index), or None where it ends before."""
    for part in path.split("."):
        tree = tree[int(part)] if part.isdigit() else getattr(tree, part, None)
        if tree is None:
            return None
    return tree


def _value(policy: Any, fleet: Any, name: str) -> Any:
    value = find(fleet, FLEET[name][0]) if name in FLEET else find(policy, name)
    return value if isinstance(value, Tracer) or jnp.ndim(value) else float(value)


def _replaced(tree: Any, path: str, value: Any) -> Any:
    """The module with the leaf at the dotted path set; its other fields are the same objects."""

    return eqx.tree_at(lambda t: find(t, path), tree, value)


def _to_line(x: Array, low: Any, high: Any, p: Parameter) -> Array:
    if p.ended == (True, True):
        share = jnp.clip((x - low) / (high - low), BESIDE, 1.0 - BESIDE)
        return jnp.log(share) - jnp.log1p(-share)
    if p.ended[0]:
        return _inverse_softplus(jnp.maximum((x - low) / p.size, BESIDE))
    if p.ended[1]:
        return -_inverse_softplus(jnp.maximum((high - x) / p.size, BESIDE))
    return x / p.size


def _from_line(u: Array, low: Any, high: Any, p: Parameter) -> Array:
    if p.ended == (True, True):
        return low + (high - low) * jax.nn.sigmoid(u)
    if p.ended[0]:
        return low + p.size * jax.nn.softplus(u)
    if p.ended[1]:
        return high - p.size * jax.nn.softplus(-u)
    return p.size * u


def _inverse_softplus(y: Array) -> Array:
    return y + jnp.log(-jnp.expm1(-y))
