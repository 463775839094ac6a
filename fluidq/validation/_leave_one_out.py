"""The leave-one-out test: a row's request rate from the other rows of its group.

Nothing measured at the row is used: not its batch, its step time, its flows or its time per token. From the others
come the time per output token against batch (`_step_curve`), and what the closed loop loses (`_closed_loop`: share in
flight, burstiness, delay); r_P is the row's own column, which is a flow of other rows, or their largest flow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fluidq.validation._closed_loop import Loop, Point, closed_loop
from fluidq.validation._rows import Row
from fluidq.validation._step_curve import Curve, System, curve_of, mean_context

# The least number of other rows in the group: two points, for a level and a slope.
SIBLINGS = 2
# Splits within this share of the best count as the best.
NEAR = 0.02
# Splits of a large fleet on either side of the published one.
_SPLITS = 2048
# What the loop loses: mean and width (of the logarithm). A run of ten rounds spends about one in filling and emptying.
_SHARE, _BURST, _DELAY, _RATE = (0.9, 0.03), (2.0, 0.5), (0.5, 0.5), (1.02, 0.03)
_GROUPS = 0.7  # by how much the burstiness of groups differs
_ERROR = 0.05  # relative errors of a rate beyond this count less than their square


@dataclass(frozen=True)
class Prediction:
    """A row's rate from the other rows.

    Attributes:
        request_rate, measured, error: predicted and measured [req/s], and predicted / measured - 1.
        tpot, batch, prefill_load: predicted time per output token [s], sequences per decode GPU, load of prefill.
        siblings: other rows of the group.
        split_share: the published split's rate over the best that whole workers on at most its GPUs reach at its
            concurrency and at no longer time per output token.
        split_share_any_tpot: the same where the time per output token may grow.
        best_workers: (prefill, decode) workers of the split with the highest rate, at any time per output token.
        rejected: how many other splits of the same GPUs fail the test that the published one is put to, and of how
            many: (with more prefill workers, of, with fewer, of). It shows what the test can tell.
    """

    request_rate: float
    measured: float
    error: float
    tpot: float
    batch: float
    prefill_load: float
    siblings: int
    split_share: float
    split_share_any_tpot: float
    best_workers: tuple[int, int]
    rejected: tuple[int, int, int, int]

    @property
    def near_best(self) -> bool:
        """Whether the published split is the best, or within 2 % of it, at no longer time per output token."""
        return self.split_share >= 1 - NEAR


class _Design(NamedTuple):
    """Inputs of closed loops, one entry per case."""

    concurrency: np.ndarray
    isl: np.ndarray
    osl: np.ndarray
    prefill_workers: np.ndarray
    prefill_gpus: np.ndarray
    decode_gpus: np.ndarray


@dataclass(frozen=True)
class _Case:
    """A row with everything that the test needs."""

    row: Row
    group: str
    concurrency: float
    isl: float
    osl: float
    prefill_worker: float
    decode_worker: float
    prefill_workers: float
    decode_workers: float
    rate: float
    flow: float
    batch: float
    tpot: float
    r_P: float | None

    def design(self, splits: Sequence[tuple[float, float]]) -> _Design:
        prefill, decode = (np.array(part, float) for part in zip(*splits, strict=True))
        one = np.ones_like(prefill)
        return _Design(
            self.concurrency * one,
            self.isl * one,
            self.osl * one,
            prefill,
            prefill * self.prefill_worker,
            decode * self.decode_worker,
        )

    def splits(self) -> list[tuple[float, float]]:
        """The published split first, then every one on at most its GPUs that has no room for another decode worker."""
        gpus = self.prefill_workers * self.prefill_worker + self.decode_workers * self.decode_worker
        most = int((gpus - self.decode_worker) / self.prefill_worker + 1e-9)
        middle = int(self.prefill_workers)
        counts = range(max(1, middle - _SPLITS), min(most, middle + _SPLITS) + 1)
        every = [(float(n), float((gpus - n * self.prefill_worker) // self.decode_worker)) for n in counts]
        published = (self.prefill_workers, self.decode_workers)
        return [published, *(split for split in every if split != published)]

    def system(self, r_P: float) -> System:
        spec = self.row.text("spec_decode")
        return System(
            group=self.group,
            worker=(self.group, spec, self.decode_worker),
            r_P=r_P,
            context=mean_context(self.row.numbers["isl_tok"], self.osl),  # cached tokens are attended too
            speculates=spec not in ("", "none"),
        )


def _case(row: Row) -> _Case | str:
    kind, group = row.text("evidence_class"), row.text("sibling_group")
    if kind != "B":
        return f"class {kind or '(none)'}: the test needs operating points of class B"
    if row.get("testable") == 0:
        return "marked as not testable in the file"
    if not group:
        return "no sibling_group"
    wanted = {
        "concurrency_req": row.get("concurrency_req"),
        "isl_tok": row.computed,
        "osl_tok": row.get("osl_tok"),
        "gpus_per_prefill_worker": row.get("gpus_per_prefill_worker"),
        "gpus_per_decode_worker": row.get("gpus_per_decode_worker"),
        "n_prefill_workers": row.workers("prefill"),
        "n_decode_workers": row.workers("decode"),
        "request_rate_req_per_s": row.get("request_rate_req_per_s"),
        "B_req_per_gpu": row.batch,
        "decode_tok_per_s_gpu or t_step_s": row.tpot,
    }
    missing = [name for name, value in wanted.items() if not value]
    if missing:
        return f"no {', '.join(missing)} above 0"
    values = [float(value) for value in wanted.values() if value is not None]
    concurrency, isl, osl, g_P, g_D, workers_P, workers_D, rate, batch, tpot = values
    flow = row.get("prefill_flow_tok_per_s_gpu") or rate * isl / (workers_P * g_P)
    r_P = row.get("r_P_tok_per_s_gpu")
    return _Case(row, group, concurrency, isl, osl, g_P, g_D, workers_P, workers_D, rate, flow, batch, tpot, r_P)


def _prefill_rate(case: _Case, others: Sequence[_Case], left_out: _Case) -> float | None:
    """r_P of a case without the flow of the one that is left out.

    Where the column holds just that flow (it is the largest of the group), the largest other one takes its place.
    """
    of_left_out = case is not left_out and case.r_P is not None and abs(case.r_P / left_out.flow - 1) < 1e-3
    if case.r_P is not None and not of_left_out:
        return case.r_P
    flows = [
        other.flow
        for other in others
        if other.group == case.group and other.prefill_worker == case.prefill_worker and other.isl == case.isl
    ]
    return max(flows, default=None)


def leave_one_out(rows: Sequence[Row], reference: Sequence[Row] = ()) -> list[Prediction | str]:
    """For each of `rows` the prediction from all other rows (and `reference`), or why there is none."""
    cases = [_case(row) for row in rows]
    pool = [case for case in (*cases, *map(_case, reference)) if isinstance(case, _Case)]
    out: list[Prediction | str] = []
    for case in cases:
        if isinstance(case, str):
            out.append(case)
            continue
        others = [other for other in pool if other is not case and not _same(other, case)]
        siblings = sum(other.group == case.group for other in others)
        r_P = _prefill_rate(case, others, case)
        if siblings < SIBLINGS:
            words = "no other row" if siblings == 0 else "one other row only"
            out.append(f"{words} in its sibling_group: {SIBLINGS} are needed for a curve")
        elif r_P is None:
            out.append("no r_P_tok_per_s_gpu, and no other row with its prefill worker and input length")
        else:
            out.append(_predict(case, r_P, others, siblings, len(pool)))
    return out


def _same(a: _Case, b: _Case) -> bool:
    """Whether two rows are one published point, listed twice or in both files: it must not predict itself."""
    named = bool(a.row.text("row_id")) and a.row.text("row_id") == b.row.text("row_id")
    return named or (a.group == b.group and a.row.numbers == b.row.numbers)


def _predict(case: _Case, r_P: float, others: Sequence[_Case], siblings: int, size: int) -> Prediction:
    known = [(other, _prefill_rate(other, others, case)) for other in others]
    used = [(other, rate) for other, rate in known if rate is not None]
    systems = [other.system(rate) for other, rate in used]
    batch, tpot = (np.array([getattr(other, name) for other, _ in used]) for name in ("batch", "tpot"))
    curve = curve_of(case.system(r_P), systems, batch, tpot, size)
    loop, factor = _fit_loop(case, used, size)
    splits = case.splits()
    width = 1 << (len(splits) - 1).bit_length()
    design = case.design(splits + splits[:1] * (width - len(splits)))
    point = _points(curve, design, np.full(width, r_P * factor), *np.broadcast_arrays(*loop, np.zeros(width))[:3])
    rates, times = np.asarray(point.request_rate), np.asarray(point.tpot)
    rates, times = rates[: len(splits)], times[: len(splits)]
    # Row i, column j: the split j needs no longer per token than i, so that it competes with it.
    rivals = times[None] <= times[:, None] * (1 + 1e-9)
    shares = rates / np.where(rivals, rates[None], 0.0).max(axis=1)
    fails = shares < 1 - NEAR
    more = np.array([split[0] > case.prefill_workers for split in splits])
    fewer = np.array([split[0] < case.prefill_workers for split in splits])
    best = splits[int(rates.argmax())]
    return Prediction(
        request_rate=float(rates[0]),
        measured=case.rate,
        error=float(rates[0] / case.rate - 1),
        tpot=float(times[0]),
        batch=float(point.batch[0]),
        prefill_load=float(point.prefill_load[0]),
        siblings=siblings,
        split_share=float(shares[0]),
        split_share_any_tpot=float(rates[0] / rates.max()),
        best_workers=(int(best[0]), int(best[1])),
        rejected=(int(fails[more].sum()), int(more.sum()), int(fails[fewer].sum()), int(fewer.sum())),
    )


@jax.jit
def _points(curve: Curve, design: _Design, r_P: Array, share: Array, scv: Array, delay: Array) -> Point:
    def one(row: _Design, rate: Array, *loop: Array) -> Point:
        return closed_loop(
            row.concurrency,
            row.isl,
            row.osl,
            rate,
            row.prefill_workers,
            row.prefill_gpus,
            row.decode_gpus,
            curve,
            Loop(*loop),
        )

    return jax.vmap(one)(jax.tree.map(jnp.asarray, design), r_P, share, scv, delay)


def _fit_loop(case: _Case, used: Sequence[tuple[_Case, float]], size: int) -> tuple[tuple[float, float, float], float]:
    """(share, scv, delay) for the group of `case`, and the factor on r_P, from the rates of the other rows.

    Each other row's rate is computed with its own measured time per token, so that only the loop is fitted. Robust
    least squares of the logarithm, with normal laws on the logarithms of the parameters.
    """
    from scipy.optimize import least_squares

    names = sorted({other.group for other, _ in used} | {case.group})
    count = len(names)
    pad = size - len(used)
    filled = [*used, *[used[0]] * pad]
    fixed = {
        "design": jax.tree.map(
            lambda *parts: jnp.asarray(np.concatenate(parts)),
            *[other.design([(other.prefill_workers, other.decode_workers)]) for other, _ in filled],
        ),
        "r_P": jnp.asarray([rate for _, rate in filled]),
        "tpot": jnp.asarray([other.tpot for other, _ in filled]),
        "measured": jnp.asarray([other.rate for other, _ in filled]),
        "group": jnp.asarray([names.index(other.group) for other, _ in filled]),
        "weight": jnp.asarray([1.0] * len(used) + [0.0] * pad),
    }
    start = np.concatenate([np.log([_SHARE[0], _BURST[0], _DELAY[0], _RATE[0]]), np.zeros(count)])
    slopes: Any = lambda p: np.asarray(_slopes(p, **fixed))  # noqa: E731  (SciPy's stub knows only names of methods)
    solved = least_squares(lambda p: np.asarray(_residuals(p, **fixed)), start, jac=slopes, x_scale=0.1).x
    share, burst, delay, rate = np.exp(solved[:4])
    burst *= np.exp(solved[4 + names.index(case.group)])
    return (min(float(share), 1.0), _scv(float(burst)), float(delay)), float(rate)


def _scv(burst: float) -> float:
    """The queue's (1 + scv)/2 is what is fitted; below 1/2 prompts would wait less than equal ones."""
    return max(2 * burst - 1, 0.0)


@jax.jit
def _residuals(
    p: Array, *, design: _Design, r_P: Array, tpot: Array, measured: Array, group: Array, weight: Array
) -> Array:
    share, burst = jnp.minimum(jnp.exp(p[0]), 1.0), jnp.exp(p[1] + p[4:][group])
    scv = jnp.maximum(2 * burst - 1, 0.0)

    def one(row: _Design, rate: Array, time: Array, scv: Array) -> Array:
        loop = Loop(share, scv, jnp.exp(p[2]))
        return closed_loop(
            row.concurrency,
            row.isl,
            row.osl,
            rate * jnp.exp(p[3]),
            row.prefill_workers,
            row.prefill_gpus,
            row.decode_gpus,
            lambda batch: time + 0.0 * batch,
            loop,
        ).request_rate

    error = (jnp.log(jax.vmap(one)(design, r_P, tpot, scv)) - jnp.log(measured)) / _ERROR
    robust = jnp.sign(error) * jnp.sqrt(2 * (jnp.sqrt(1 + error**2) - 1) + 1e-18)
    means, widths = (jnp.array(part) for part in zip(_SHARE, _BURST, _DELAY, _RATE, strict=True))
    return jnp.concatenate([weight * robust, p[4:] / _GROUPS, (p[:4] - jnp.log(means)) / widths])


_slopes = jax.jit(jax.jacfwd(_residuals))
