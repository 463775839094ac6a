"""The balance test: phi from a row's rates against the split that the row chose."""

import math
from dataclasses import dataclass

from fluidq.formulas import requests
from fluidq.validation._rows import Row

CLASSES = {
    "A": "rates measured apart from the split",
    "S": "split swept, rates from its ends",
    "B": "operating point; decode rate of the point itself, r_P of its siblings",
    "M": "phase times measured, split found by a simulator",
    "C": "flows only, or an input missing",
    "R": "worker counts only",
}
# How a split was chosen, where balance is to be expected from it.
BALANCED = frozenset({"rate_matched_vendor", "sweep_optimum", "slo_tuned_production"})


@dataclass(frozen=True)
class Balance:
    """What the balance says about a row.

    Attributes:
        expected: whether the way in which the split was chosen lets one expect balance.
        phi_measured, phi, error: prefill share of the GPUs: chosen, from the rates (D01, D04), and the difference.
        workers, workers_ideal: prefill workers chosen, and the number that would balance the row's decode pool.
        within_one: whether they differ by one at most.
        balancing_osl: output length at which the chosen split would be balanced [tok].
        binds: the pool that the rates make the slower one at the chosen split.
    """

    expected: bool
    phi_measured: float
    phi: float
    error: float
    workers: float
    workers_ideal: float
    within_one: bool
    balancing_osl: float
    binds: str


def balance_of(row: Row) -> Balance | str:
    """The balance of a row, or why there is none."""
    kind = row.text("evidence_class")
    if kind and kind not in CLASSES:
        return f"evidence class {kind!r} is unknown; known are {', '.join(CLASSES)}"
    if row.get("testable") == 0:
        return "marked as not testable in the file"
    wanted = {
        "isl_tok": row.computed,
        "osl_tok": row.get("osl_tok"),
        "r_P_tok_per_s_gpu": row.get("r_P_tok_per_s_gpu"),
        "decode_tok_per_s_gpu": row.decode_rate,
        "n_P_gpu": row.gpus("prefill"),
        "n_D_gpu": row.gpus("decode"),
        "n_prefill_workers": row.workers("prefill"),
    }
    missing = [name for name, value in wanted.items() if value is None]
    if missing:
        return f"no {', '.join(missing)}"
    computed, osl, r_P, rate, n_P, n_D, workers = (float(value) for value in wanted.values() if value is not None)
    if n_P + n_D <= 0:
        return "no GPUs"
    if workers <= 0 or n_D <= 0:
        return "one pool only, no split to test"
    for pool in ("prefill", "decode"):
        size, count = row.get(f"gpus_per_{pool}_worker"), row.get(f"n_{pool}_workers")
        gpus = n_P if pool == "prefill" else n_D
        if size is not None and count is not None and abs(size * count - gpus) > 1e-6 * gpus:
            return f"{count:g} {pool} workers of {size:g} GPUs are not the {gpus:g} GPUs of the pool"
    if computed == 0 and osl == 0:
        return "neither input nor output, nothing to balance"
    t_P, t_D = computed / r_P, osl / rate
    phi = float(requests.balance_ratio_work(t_P=t_P, t_D=t_D))
    ideal = n_D * t_P / t_D / (n_P / workers) if t_D else math.inf
    measured = n_P / (n_P + n_D)
    return Balance(
        expected=row.text("ratio_selection") in BALANCED,
        phi_measured=measured,
        phi=phi,
        error=phi - measured,
        workers=workers,
        workers_ideal=ideal,
        within_one=abs(ideal - workers) <= 1 + 1e-9,
        balancing_osl=t_P * rate * n_D / n_P,
        binds="prefill" if n_P * t_D < n_D * t_P else "decode",
    )
