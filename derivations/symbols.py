"""Every symbol of the theory, once: code name, LaTeX, unit, sign, domain, a usual value, and what it is in words.

`from derivations.symbols import phi, tau` gives SymPy symbols whose name is the code name. A topic that needs one more
makes it with `quantity(...)` in its own file. `Symbol("tau", positive=True)` and `Symbol("tau")` are different symbols
to SymPy: never make one that exists here.
"""

from dataclasses import dataclass
from typing import Any

import sympy as sp

from derivations.units import Unit, parse

oo = sp.oo


@dataclass(frozen=True)
class Quantity:
    """What is known of one symbol."""

    symbol: Any
    latex: str
    unit: Unit
    shown: str  # the unit as people write it
    words: str
    nominal: float  # a usual value, well inside the domain
    low: Any
    high: Any
    open_low: bool  # the lower end itself is excluded
    special: tuple[Any, ...]  # points inside the domain where a formula may have a kink
    integer: bool

    @property
    def edges(self) -> tuple[Any, ...]:
        """The points at which a generated function is tried: closed finite ends and special points."""
        ends = [] if self.open_low or self.low == -oo else [self.low]
        ends += [] if self.high == oo else [self.high]
        return tuple(dict.fromkeys([*ends, *self.special]))

    @property
    def range_words(self) -> str:
        """The domain in words for a docstring."""
        if self.low == -oo and self.high == oo:
            return "any sign"
        sign = ">" if self.open_low else ">="
        return f"{sign} {self.low}" if self.high == oo else f"{self.low} to {self.high}"


def _sympify(number: object) -> Any:
    return sp.sympify(number)


QUANTITIES: dict[sp.Symbol, Quantity] = {}


def quantity(
    code: str,
    latex: str,
    unit: str,
    words: str,
    nominal: float,
    domain: str | tuple[object, object] = "positive",
    shown: str | None = None,
    special: tuple[object, ...] = (),
    integer: bool = False,
) -> Any:
    """Declare a symbol; `domain` is "positive", "nonnegative", "real" or a closed interval (ends may be symbols)."""
    named: dict[str, tuple[object, object]] = {"positive": (0, oo), "nonnegative": (0, oo), "real": (-oo, oo)}
    low, high = map(_sympify, named[domain] if isinstance(domain, str) else domain)
    assume: dict[str, bool] = {"integer": True} if integer else {}
    if domain == "positive" or low.is_positive:
        assume["positive"] = True
    elif low.is_nonnegative:
        assume["nonnegative"] = True
    else:
        assume["real"] = True
    if not code.isidentifier():
        raise ValueError(f"symbol {code!r} is no Python name")
    new = Quantity(
        symbol=sp.Symbol(code, **assume),
        latex=latex,
        unit=parse(unit),
        shown=shown or unit,
        words=words,
        nominal=nominal,
        low=low,
        high=high,
        open_low=domain == "positive",
        special=tuple(map(_sympify, special)),
        integer=integer,
    )
    for old in QUANTITIES.values():
        if old.symbol.name == code and old != new:
            raise ValueError(f"symbol {code!r} exists already as {old.words!r}; import it or choose another name")
    QUANTITIES[new.symbol] = new
    return new.symbol


def units() -> dict[sp.Symbol, Unit]:
    """The unit of every declared symbol."""
    return {symbol: q.unit for symbol, q in QUANTITIES.items()}


def latex_names() -> dict[sp.Symbol, str]:
    """The LaTeX name of every declared symbol, for `sympy.latex(..., symbol_names=...)`."""
    return {symbol: q.latex for symbol, q in QUANTITIES.items()}


# Lengths are means per request; the mean over a token-weighted or a step-weighted population has its own symbol.
isl = quantity("isl", "I", "tok/req", "mean input length", 8192.0, "nonnegative", shown="tok")
osl = quantity("osl", "O", "tok/req", "mean output length", 1024.0, "nonnegative", shown="tok")
isl_new = quantity("isl_new", "I'", "tok/req", "mean input length after the step", 4096.0, "nonnegative", shown="tok")
osl_new = quantity("osl_new", "O'", "tok/req", "mean output length after the step", 1536.0, "nonnegative", shown="tok")
theta_ctx = quantity(
    "theta_ctx", r"\theta", "tok/req", "mean context per decode step", 8704.0, "nonnegative", shown="tok"
)
n_chunks = quantity("n_chunks", "n_c", "1", "chunks per prompt", 8.0, (1, oo))

# Rates and times of one GPU. A step commits one token per sequence, hence seconds per token and sequence.
r_P = quantity("r_P", "r_P", "tok/s/GPU", "prefill throughput per GPU", 56250.0)
B = quantity("B", "B", "seq/GPU", "decode batch per GPU", 64.0)
t_step = quantity("t_step", "t_s", "s*seq/tok", "decode step time", 0.02, shown="s")
t_step_a = quantity("t_step_a", "a", "s*seq/tok", "step time of an empty batch", 0.012, shown="s")
t_step_b = quantity("t_step_b", "b", "s*GPU/tok", "step time per sequence on a GPU", 5e-5, shown="s/seq")
t_step_c = quantity("t_step_c", "c", "s*seq*GPU/tok^2", "step time per context token", 5e-9, shown="s/(seq tok)")
accept = quantity("accept", r"\alpha", "1", "tokens committed per step and sequence", 1.8, (1, oo), shown="tok/step")
t_P = quantity("t_P", "t_P", "GPU*s/req", "prefill work of a request", 0.1456, "nonnegative")
t_D = quantity("t_D", "t_D", "GPU*s/req", "decode work of a request", 0.32, "nonnegative")
lam = quantity("lam", r"\lambda", "req/s", "arrival rate", 100.0, "nonnegative")

# Fleet.
N = quantity("N", "N", "GPU", "GPUs in the fleet", 64.0)
n_P = quantity("n_P", "n_P", "GPU", "GPUs in the prefill pool", 20.0, "nonnegative")
n_D = quantity("n_D", "n_D", "GPU", "GPUs in the decode pool", 44.0, "nonnegative")
g_P = quantity("g_P", "g_P", "GPU", "GPUs per prefill worker", 4.0)
g_D = quantity("g_D", "g_D", "GPU", "GPUs per decode worker", 8.0)
phi = quantity("phi", r"\phi", "1", "prefill share of the GPUs", 0.3, (0, 1))
logodds = quantity("logodds", r"\Lambda", "1", "log-odds of the prefill share", -0.85, "real")

# KV cache and fabric.
kappa_store = quantity("kappa_store", r"\kappa", "B/tok", "resident KV bytes per token", 95e3)
kappa_read = quantity("kappa_read", r"\kappa_r", "B/tok", "KV bytes read per token and step", 4864.0)
nic = quantity("nic", "b", "B/s/GPU", "NIC bandwidth per GPU, each way", 50e9)
nic_P = quantity("nic_P", "b_P", "B/s/GPU", "send bandwidth per prefill GPU", 50e9)
nic_D = quantity("nic_D", "b_D", "B/s/GPU", "receive bandwidth per decode GPU", 50e9)
fabric = quantity("fabric", "B_F", "B/s", "bandwidth of the fabric between the pools", 2e12)
hit = quantity("hit", "h", "1", "share of input tokens whose KV the prefill side has", 0.4, (0, 1))
hit_decode = quantity("hit_decode", "h_D", "1", "share of input tokens whose KV the decode side has", 0.2, (0, 1))

# Memory.
H = quantity("H", "H", "B/GPU", "HBM per GPU", 192e9)
W = quantity("W", "W", "B/GPU", "weights per GPU", 93e9, "nonnegative")
A_P = quantity("A_P", r"\mathcal{A}_P", "B/GPU", "activation reservation of a prefill GPU", 17e9, "nonnegative")
A_D = quantity("A_D", r"\mathcal{A}_D", "B/GPU", "activation reservation of a decode GPU", 6e9, "nonnegative")

# The buffer between the pools: flows and stocks of the whole fleet or per prefill GPU, all alike.
P = quantity("P", "P", "B/s", "produced flow", 5.34e9)
A = quantity("A", "A", "B/s", "accepted flow", 5.34e9)
delta = quantity("delta", r"\delta", "B/s", "surplus P - A (negative: shortfall)", 2.67e9, "real", special=(0,))
delta_up = quantity("delta_up", r"\delta_\uparrow", "B/s", "largest surplus", 5.34e9, "nonnegative")
delta_down = quantity("delta_down", r"\delta_\downarrow", "B/s", "largest shortfall", 5.34e9, "nonnegative")
C = quantity("C", "C", "B", "capacity of the buffer", 150e9)
Q0 = quantity("Q0", "Q_0", "B", "stock in the buffer when the step opens", 75e9, (0, C))
Q = quantity("Q", "Q", "B", "level of the buffer", 75e9, (0, C))
stock = quantity("stock", "S", "B", "stock (shortfall) or headroom (surplus) that the step uses up", 75e9, (0, C))
tau = quantity("tau", r"\tau", "s", "lead time: detect, decide, cold start", 88.0, "nonnegative")
T_hit = quantity("T_hit", r"T_{\mathrm{hit}}", "s", "time until the buffer is empty or full", 28.0, "nonnegative")
L = quantity("L", "L", "1", "stranded share of the balanced flow over the lead time", 0.2, "nonnegative")
U = quantity("U", "U", "B", "bytes lost over the lead time", 1e11, "nonnegative")
time = quantity("time", "t", "s", "time since the step opened", 30.0, "nonnegative")

# Moments of the lengths, and a prefill whose attention grows with the square of the prompt.
isl_sq = quantity("isl_sq", r"\overline{I^2}", "tok^2/req^2", "mean square of the input length", 1.3e8, "nonnegative")
osl_sq = quantity("osl_sq", r"\overline{O^2}", "tok^2/req^2", "mean square of the output length", 2e6, "nonnegative")
isl_osl = quantity("isl_osl", r"\overline{I O}", "tok^2/req^2", "mean of input times output", 8.5e6, "nonnegative")
r_0 = quantity("r_0", "r_0", "tok/s/GPU", "prefill throughput per GPU without attention", 56250.0)
s_0 = quantity("s_0", "s_0", "tok^2/s/req/GPU", "squared prompt length that attention takes a GPU per second", 2e9)

# Whole workers.
g_common = quantity("g_common", "d", "GPU", "greatest common divisor of the two worker sizes", 4.0)
