"""Buffer bounds: the capacity and stock that a swing of the flow needs until the resize lands."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluidq._errors import refuse
from fluidq.formulas import buffer
from fluidq.units import Quantity, format, si

Loss = Callable[[float], float]

# Published start-up times of a worker (Qwen3.5-122B-A10B-FP8 on B200; the post "Cloudburst", [P]).
COLD_STARTS = (
    ("RAM-staged weights", 9.6),
    ("patched CRIU restore", 24.5),
    ("CRIU restore", 32.1),
    ("warm caches", 88.0),
    ("cold", 695.0),
)


def columns(rows: list[tuple[str, ...]], indent: str = "  ") -> str:
    """Rows of text in aligned columns: the first and last flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush_left = (0, len(widths) - 1)

    def line(row: tuple[str, ...]) -> str:
        cells = zip(row, widths, range(len(row)), strict=True)
        return "  ".join(cell.ljust(w) if i in flush_left else cell.rjust(w) for cell, w, i in cells)

    return "\n".join((indent + line(row)).rstrip() for row in rows)


@dataclass(frozen=True)
class Rung:
    """One cold start [s] with the C* and Q0* [B] it needs, and the loss fraction of a given buffer where judged."""

    name: str
    cold_start: float
    capacity: float
    stock: float
    loss_fraction: float | None = None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "cold_start_s": self.cold_start}
        out |= {"capacity_bytes": self.capacity, "stock_bytes": self.stock}
        return out if self.loss_fraction is None else {**out, "loss_fraction": self.loss_fraction}


def ladder(delta_up: float, delta_down: float, own: float | None = None, loss: Loss | None = None) -> tuple[Rung, ...]:
    """C* and its centred stock (D15) for the published cold starts and one's `own`; `loss` maps tau to a loss."""
    steps = list(COLD_STARTS)
    if own is not None and own not in (tau for _, tau in COLD_STARTS):
        steps.append(("this one", own))
    return tuple(
        Rung(
            name,
            tau,
            capacity := float(buffer.minimal_capacity(delta_up=delta_up, delta_down=delta_down, tau=tau)),
            _centred(capacity, delta_up, delta_down),
            None if loss is None else loss(tau),
        )
        for name, tau in sorted(steps, key=lambda step: step[1])
    )


def ladder_text(rungs: tuple[Rung, ...]) -> str:
    """The ladder as a table."""
    judged = rungs[0].loss_fraction is not None
    rows = [("cold start", "tau", "C*", "Q0*", "loss L" if judged else "")]
    for r in rungs:
        loss = "" if r.loss_fraction is None else f"{r.loss_fraction:.4f}"
        rows.append((r.name, f"{r.cold_start:g} s", f"{r.capacity / 1e9:,.0f} GB", f"{r.stock / 1e9:,.0f} GB", loss))
    return columns(rows)


@dataclass(frozen=True)
class Bounds:
    """What `bounds` found; SI units. The last four are None where C, Q0 and delta were not all given.

    Attributes:
        capacity: minimal capacity C* [B] that loses nothing over one cold start (D15).
        stock: stock Q0* [B] that centres it: full and empty are reached after the same time.
        capacity_per_second: what one second of cold start costs in capacity [B/s] (D31).
        ladder: the same for the published cold starts, with the loss of the given buffer where it is judged.
        given_capacity, given_stock: C and Q0 [B] as given; Q0 is centred where only C was.
        time_to_boundary: time [s] from Q0 to full or empty under delta; infinite at delta = 0 (D14).
        loss_fraction: mean stranded flow over [0, tau] as a share of `flow` (D14); None without a flow. Above 1 is
            possible for a shortfall larger than the flow itself.
        lost_bytes: what that is in bytes over the cold start.
    """

    delta_up: float
    delta_down: float
    cold_start: float
    capacity: float
    stock: float
    capacity_per_second: float
    ladder: tuple[Rung, ...]
    given_capacity: float | None = None
    given_stock: float | None = None
    flow: float | None = None
    delta: float | None = None
    time_to_boundary: float | None = None
    loss_fraction: float | None = None
    lost_bytes: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; a boundary that is never reached is null (JSON has no infinity)."""
        out: dict[str, Any] = {
            "delta_up_bytes_per_s": self.delta_up,
            "delta_down_bytes_per_s": self.delta_down,
            "cold_start_s": self.cold_start,
            "capacity_bytes": self.capacity,
            "stock_bytes": self.stock,
            "capacity_bytes_per_s_of_cold_start": self.capacity_per_second,
            "ladder": [rung.to_dict() for rung in self.ladder],
        }
        if self.given_capacity is not None:
            out["given"] = {"capacity_bytes": self.given_capacity, "stock_bytes": self.given_stock}
        if self.time_to_boundary is not None:
            out["given"]["delta_bytes_per_s"] = self.delta
            out["time_to_boundary_s"] = self.time_to_boundary if math.isfinite(self.time_to_boundary) else None
            out["lost_bytes"] = self.lost_bytes
        if self.loss_fraction is not None:
            out["given"]["flow_bytes_per_s"] = self.flow
            out["loss_fraction"] = self.loss_fraction
        return out

    def __str__(self) -> str:
        rows = [
            ("surplus", format(self.delta_up, "bytes/s"), "fills the headroom C - Q0"),
            ("shortfall", format(self.delta_down, "bytes/s"), "drains the stock Q0"),
            ("cold start", format(self.cold_start, "seconds"), "until the resize lands"),
            ("capacity C*", f"{self.capacity / 1e9:,.3g} GB", "the least that holds either swing for that long (D15)"),
            ("stock Q0*", f"{self.stock / 1e9:,.3g} GB", "full and empty are equally far (D15)"),
            ("exchange", format(self.capacity_per_second, "bytes/s"), "of capacity per second of cold start (D31)"),
        ]
        parts = [
            "Handoff buffer; per prefill GPU where the flows are",
            columns(rows),
            ladder_text(self.ladder),
        ]
        if self.given_capacity is not None:
            parts.append(self._given())
        return "\n\n".join(parts)

    def _given(self) -> str:
        assert self.given_capacity is not None  # `__str__` looked
        assert self.given_stock is not None
        missing = self.capacity - self.given_capacity
        verdict = f"{format(missing, 'bytes')} short of C*" if missing > 0 else "holds C*"
        rows = [
            ("capacity C", format(self.given_capacity, "bytes"), verdict),
            ("stock Q0", format(self.given_stock, "bytes"), ""),
        ]
        if self.delta is not None and self.time_to_boundary is not None and self.lost_bytes is not None:
            end = "full" if self.delta > 0 else "empty"
            reached = format(self.time_to_boundary, "seconds") if math.isfinite(self.time_to_boundary) else "never"
            rows.append(("delta", format(self.delta, "bytes/s"), "produced minus accepted flow"))
            rows.append((end if self.delta else "boundary", reached, "after the step opens (D14)"))
            share = "give the flow for it as a share"
            if self.loss_fraction is not None:
                share = f"{self.loss_fraction:.2%} of the flow over the cold start (D14)"
            what = "pushed back" if self.delta > 0 else "not decoded"
            rows.append((f"lost ({what})" if self.lost_bytes else "lost", format(self.lost_bytes, "bytes"), share))
        return "Given\n" + columns(rows)


def bounds(
    delta_up: Quantity,
    delta_down: Quantity,
    cold_start: Quantity,
    capacity: Quantity | None = None,
    stock: Quantity | None = None,
    flow: Quantity | None = None,
    delta: Quantity | None = None,
) -> Bounds:
    """The buffer that absorbs a swing of the flow until a resize lands, and what a given buffer loses.

    C* = (delta_up + delta_down) tau and Q0* = delta_down tau (D15); with C, Q0 and delta, the time to the boundary
    and, with the flow P, the loss L = |delta|/P max(0, 1 - T_hit/tau) (D14).

    Args:
        delta_up, delta_down: largest surplus and shortfall of produced over accepted flow, both >= 0 [B/s].
        cold_start: time until the resize lands [s].
        capacity, stock: a buffer C and its level Q0 [B]; the stock is centred where only the capacity is given.
        flow: the balanced flow P [B/s].
        delta: the step to judge, produced minus accepted [B/s]; a surplus cannot exceed the flow.

    Each is text with units or an SI number.

    Raises:
        InputError: a negative size or time, C < Q0, a surplus above the flow, delta or stock without a capacity.
    """
    up = _finite(delta_up, "bytes/s", "delta_up", minimum=0.0)
    down = _finite(delta_down, "bytes/s", "delta_down", minimum=0.0)
    tau = _finite(cold_start, "seconds", "cold_start", minimum=0.0)
    least = float(buffer.minimal_capacity(delta_up=up, delta_down=down, tau=tau))
    per_second = float(buffer.capacity_per_second(delta_up=up, delta_down=down))
    C = None if capacity is None else _finite(capacity, "bytes", "capacity", minimum=0.0)
    Q0 = None if stock is None else _finite(stock, "bytes", "stock", minimum=0.0)
    P = None if flow is None else _finite(flow, "bytes/s", "flow", above=0.0)
    d = None if delta is None else _finite(delta, "bytes/s", "delta")
    if C is None and (Q0 is not None or d is not None):
        raise refuse("capacity", None, f"given where {'stock' if Q0 is not None else 'delta'} is")
    if C is not None and Q0 is not None and Q0 > C:
        raise refuse("stock", format(Q0, "bytes"), f"at most the capacity, {format(C, 'bytes')} (Q0 <= C)")
    if d is not None and P is not None and d > P:
        limit = format(P, "bytes/s")
        raise refuse("delta", format(d, "bytes/s"), f"at most the flow, {limit}: accepted flow cannot be negative")
    if C is not None and Q0 is None:
        Q0 = _centred(C, up, down)
    hit = lost = None
    judge: Loss | None = None
    if C is not None and Q0 is not None and d is not None:
        hit = float(buffer.time_to_boundary(delta=d, C=C, Q0=Q0))
        lost = float(buffer.lost_bytes(delta=d, tau=tau, C=C, Q0=Q0))
        if P is not None:
            judge = functools.partial(_loss, delta=d, C=C, Q0=Q0, P=P)

    return Bounds(
        delta_up=up,
        delta_down=down,
        cold_start=tau,
        capacity=least,
        stock=_centred(least, up, down),
        capacity_per_second=per_second,
        ladder=ladder(up, down, tau, judge),
        given_capacity=C,
        given_stock=Q0,
        flow=P,
        delta=d,
        time_to_boundary=hit,
        loss_fraction=None if judge is None else judge(tau),
        lost_bytes=lost,
    )


def _loss(tau: float, **step: float) -> float:
    return float(buffer.shock_loss(tau=tau, **step))


def _centred(C: float, up: float, down: float) -> float:
    return float(buffer.centred_stock(C=C, delta_up=up, delta_down=down))


def _finite(
    value: Quantity, dimension: str, name: str, minimum: float | None = None, above: float | None = None
) -> float:
    result = si(value, dimension, name, minimum, above)
    if math.isinf(result):
        raise refuse(name, value, "a finite number")
    return result
