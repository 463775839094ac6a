"""Two GPUs for one prompt (DistServe): pipeline or tensor parallelism, and what the KV of a prompt weighs."""

from typing import Any

import sympy as sp

from derivations._cases import nonnegative
from derivations.aggregated import load
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, value
from derivations.functions import Ratio
from derivations.symbols import g_P, nic, quantity

oo = sp.oo
service = quantity("service", "D", "s", "time that a worker takes for one prompt", 0.15)
scv = quantity("scv", "c_D^2", "1", "variance of the service time over its squared mean", 0.5, "nonnegative")
speedup = quantity("speedup", "K", "1", "speed-up of a prompt by tensor parallelism over two GPUs", 1.6, (1, 2))
offered = quantity("offered", "R D", "1", "arrival rate times the service time of one GPU", 0.9, (0, 2))

FULL = sp.Eq(load, 1)


def _layouts(d: Derivation) -> list[Any]:
    """Two stages start a prompt every D/2 and pass it through in D; tensor parallelism serves it in D/K."""
    queue = d.formula("queue_wait").subs(scv, 0)
    piped = service + queue.subs(service, service / 2)
    tensor = service / speedup + queue.subs(service, service / speedup)
    rate = sp.Symbol("R", positive=True)
    deepest = d.formula("ttft_pipelined").subs(load, rate * service / 2)
    fastest = d.formula("ttft_tensor").subs(load, rate * service / speedup)
    return [
        sp.simplify(piped - d.formula("ttft_pipelined")),
        sp.simplify(tensor - d.formula("ttft_tensor")),
        sp.simplify(deepest - service - rate * service**2 / (4 * (2 - rate * service))),
        sp.simplify(fastest - service / speedup - rate * service**2 / (2 * speedup * (speedup - rate * service))),
    ]


_r = sp.Symbol("r", positive=True)  # RD = 2r/(1 + r): all of (0, 2)
ALL_LOADS = {offered: 2 * _r / (1 + _r)}


def _crossover(d: Derivation) -> list[Any]:
    """Both times are equal where K solves a quadratic; at K = 1 it is negative, so one root is above 1, one below."""
    k = sp.Symbol("k", positive=True)
    gap = d.formula("ttft_tensor").subs({load: offered / k, speedup: k}, simultaneous=True)
    gap -= d.formula("ttft_pipelined").subs(load, offered / 2)
    top = sp.Poly(sp.numer(sp.together(gap)), k)
    quadratic = sp.Poly((8 - 3 * offered) * k**2 - (8 + 4 * offered - 3 * offered**2) * k, k)
    quadratic += sp.Poly(2 * offered * (2 - offered), k)
    ours = d.formula("speedup_needed")
    root = sp.expand(_root_of(ours))
    at_one: Any = sp.factor(quadratic.as_expr().subs(k, 1).subs(ALL_LOADS))
    slope = sp.diff(quadratic.as_expr(), k).subs(k, ours)
    return [
        sp.simplify(top.as_expr() * quadratic.LC() - top.LC() * quadratic.as_expr()),
        sp.simplify(sp.expand(quadratic.as_expr().subs(k, ours))),
        sp.factor(-at_one).is_positive,
        sp.simplify(sp.expand(slope - root)),  # positive: the larger root
        sp.limit(ours, offered, 0) - 1,
        ours.subs(offered, 2) - 2,
    ]


def _root_of(expr: Any) -> Any:
    (root,) = [p for p in expr.atoms(sp.Pow) if p.exp == sp.Rational(1, 2)]
    return root


def _under_the_root(d: Derivation) -> list[Any]:
    """What is under the root stays above the guard of the regular form, on all of [0, 2]."""
    polynomial = _root_of(d.formula("speedup_needed")).base
    squares = ((3 * offered - 2) * (offered - 2)) ** 2 + 8 * (6 - offered**2)
    above = sp.factor(sp.together((8 * (6 - offered**2) - 8).subs(ALL_LOADS)))
    faces = d.formula("speedup_needed") - d.regular("speedup_needed").replace(sp.Max, lambda a, b: polynomial)
    return [
        sp.expand(polynomial - squares),
        nonnegative(above),
        sp.simplify(faces.subs(ALL_LOADS)),
        [(sp.Max(8, polynomial) - polynomial).subs(offered, at) for at in (0, 2)],
    ]


_x = offered
_discriminant = 64 - 64 * _x + 80 * _x**2 - 48 * _x**3 + 9 * _x**4
_speedup = (8 + 4 * _x - 3 * _x**2 + sp.sqrt(_discriminant)) / (2 * (8 - 3 * _x))
_speedup_regular = Ratio(8 + 4 * _x - 3 * _x**2 + sp.sqrt(sp.Max(8, _discriminant)), 2 * (8 - 3 * _x))

OPT = "DistServe (2401.09670): OPT-66B, 512 tokens"
_opt_kappa = 2 * 64 * 9216 * 2  # keys and values, layers, hidden size, bytes


def _moved(d: Derivation) -> Any:
    """Bytes of the prompt: the whole transfer times the bandwidth."""
    bytes_moved = d.formula("exposed_transfer") * g_P * nic
    return value(sp.simplify(bytes_moved), {"isl": 512, "kappa_store": _opt_kappa})


def _crosses(k: Any) -> Any:
    return lambda d: sp.nsolve(
        d.formula("speedup_needed") - k, offered, (sp.Rational(1, 100), sp.Rational(199, 100)), solver="bisect"
    )


FORMS = (
    ClosedForm(
        "ttft_pipelined",
        r"\mathrm{TTFT}_{\mathrm{inter}}",
        service + service * load / (4 * (1 - load)),
        "s",
        "Mean time to first token of two pipeline stages; load is R D / 2.",
        (load, service),
        regular=service + Ratio(service * load, 4 * (1 - load), oo),
        code_symbol="TTFT",
        conventions=(Convention(FULL, "load = 1: inf"),),
    ),
    ClosedForm(
        "ttft_tensor",
        r"\mathrm{TTFT}_{\mathrm{intra}}",
        service / speedup * (1 + load / (2 * (1 - load))),
        "s",
        "Mean time to first token of tensor parallelism that speeds a prompt up by K; load is R D / K.",
        (load, service, speedup),
        regular=Ratio(service * (2 - load), 2 * speedup * (1 - load), oo),
        code_symbol="TTFT",
        conventions=(Convention(FULL, "load = 1: inf"),),
    ),
    ClosedForm(
        "speedup_needed",
        r"K^\ast",
        _speedup,
        "1",
        "Speed-up above which tensor parallelism has the shorter time to first token, by the offered load.",
        (offered,),
        regular=_speedup_regular,
        code_symbol="K",
    ),
)

PROOFS = (
    Proof("DistServe's equations for pipeline and tensor parallelism", _layouts),
    Proof("they cross once, at the larger root of a quadratic", _crossover),
    Proof("the root is real on the whole domain", _under_the_root),
)

PUBLISHED = (
    *(
        Published(
            f"V18-{name}",
            f"DistServe: load R D at which pipeline and tensor parallelism cross, speed-up {k}",
            "D",
            crossing,
            _crosses(sp.Rational(k)),
            rounding=5e-4,
        )
        for name, k, crossing in (
            ("a", "1.2", 0.434),
            ("b", "1.5", 0.936),
            ("c", "1.7", 1.257),
            ("d", "1.9", 1.626),
        )
    ),
    Published(
        "V07",
        f"{OPT}: 1.13 'GB', read as GiB",
        "P",
        1.13,
        _moved,
        scale=sp.Rational(1, 2**30),
        unit="GiB",
        rounding=5e-3,
    ),
    Published(
        "V07-decimal",
        f"{OPT}: 1.13 GB",
        "P",
        1.13,
        _moved,
        scale=sp.Rational(1, 10**9),
        unit="GB",
        rounding=5e-3,
        expected="miss",
        reason="the paper counts GiB and writes GB",
    ),
    Published(
        "V07-flow",
        f"{OPT}, 10 requests/s: 90 'Gb/s', read as 2^30 bits",
        "P",
        90.0,
        _moved,
        scale=sp.Rational(10 * 8, 2**30),
        unit="Gib/s",
        rounding=0.5,
    ),
    Published(
        "V07-flow-decimal",
        f"{OPT}, 10 requests/s: 90 Gb/s",
        "P",
        90.0,
        _moved,
        scale=sp.Rational(10 * 8, 10**9),
        unit="Gb/s",
        rounding=0.5,
        expected="miss",
        reason="the paper counts GiB, then multiplies by 8",
    ),
)
