"""The article's shock map: which mix steps a buffer absorbs until the resize lands, and what the others strand.

Rows are cold start times tau, columns are signed steps delta; a cell holds D14's loss at the centre of its bin. The
grid is *simulated*, one queue per cell in one vmapped call, and then compared with the closed form.
"""

import colorsys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fluidq._errors import refuse
from fluidq.figures._canvas import sheet
from fluidq.formulas import buffer
from fluidq.queue import shock_loss_by_simulation

SOURCE = "the article's interactive figure (doublewordai/blog, ShockRegimeMap.tsx); D14"
PUBLISHED = {
    # The source draws with the rounded flow; 56,250 tok/s at 95 kB per token are 5.34375 GB/s before rounding.
    "P": 5.34e9,
    "C": 150e9,
    "Q0": 75e9,
    "tau_max": 1800.0,
    "columns": 48,
    "rows": 30,
}
PARAMETERS = ("C", "Q0", "P", "tau_max", "columns", "rows")
# The source's colour law: opacity over white, saturated from a loss of 50 % on; orange shortfall, blue surplus.
SATURATION, HUES = 0.5, (25 / 360, 205 / 360)
Number = float | int


@dataclass(frozen=True)
class ShockMap:
    """The numbers behind the map; SI units.

    Attributes:
        C, Q0: capacity and stock [B].
        P: balanced flow [B/s]; the steps run from -P to P.
        tau_max: longest cold start [s].
        delta: steps at the centres of the columns [B/s], shape (columns,).
        tau: cold starts at the centres of the rows [s], shape (rows,).
        loss: simulated mean stranded flow as a share of P, shape (rows, columns).
        exact: the closed form, same shape.
        figure: what was drawn; None where only the numbers were asked for.
    """

    C: float
    Q0: float
    P: float
    tau_max: float
    delta: np.ndarray
    tau: np.ndarray
    loss: np.ndarray
    exact: np.ndarray
    figure: Figure | None = None

    @property
    def worst_error(self) -> float:
        """Largest difference between simulation and closed form over the cells."""
        return float(np.abs(self.loss - self.exact).max())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: the parameters, the two hit times at a full step, and how the simulation did."""
        down, up = (float(buffer.time_to_boundary(delta=d, C=self.C, Q0=self.Q0)) for d in (-self.P, self.P))
        return {
            "capacity_bytes": self.C,
            "stock_bytes": self.Q0,
            "flow_bytes_per_s": self.P,
            "tau_max_s": self.tau_max,
            "columns": len(self.delta),
            "rows": len(self.tau),
            "time_to_empty_s": down,
            "time_to_full_s": up,
            "absorbed_share_of_cells": float((self.loss == 0).mean()),
            "largest_loss": float(self.loss.max()),
            "worst_error": self.worst_error,
        }


def compute(
    *,
    C: Number = PUBLISHED["C"],
    Q0: Number | None = None,
    P: Number = PUBLISHED["P"],
    tau_max: Number = PUBLISHED["tau_max"],
    columns: int = 48,
    rows: int = 30,
) -> ShockMap:
    """Simulate every cell of the map.

    Args:
        C: capacity [B], > 0.
        Q0: stock when the step opens [B]; half of C by default, as in the source.
        P: balanced flow per prefill GPU [B/s]; the source's rounded 5.34 GB/s by default.
        tau_max: longest cold start [s].
        columns, rows: bins over delta and tau; the source's 48 x 30 by default.

    Raises:
        InputError: C, P or tau_max not finite or not > 0, Q0 outside [0, C], fewer than one bin.
    """
    for name, value in (("C", C), ("P", P), ("tau_max", tau_max)):
        if not (np.isfinite(value) and value > 0):
            raise refuse(name, value, "a finite number > 0")
    for name, value in (("columns", columns), ("rows", rows)):
        if not 1 <= value <= 2000:
            raise refuse(name, value, "from 1 to 2000 bins")
    stock = C / 2 if Q0 is None else Q0
    delta = -P + (np.arange(columns) + 0.5) * (2 * P / columns)
    tau = (np.arange(rows) + 0.5) * (tau_max / rows)
    cell: dict[str, Any] = {"delta": delta[None, :], "tau": tau[:, None], "C": float(C), "Q0": float(stock)}
    loss, exact = (np.asarray(f(**cell, P=float(P))) for f in (shock_loss_by_simulation, _closed_form))
    return ShockMap(float(C), float(stock), float(P), float(tau_max), delta, tau, loss, exact)


def _closed_form(delta: np.ndarray, tau: np.ndarray, C: float, Q0: float, P: float) -> Any:
    delta, tau = np.broadcast_arrays(delta, tau)
    return buffer.shock_loss(delta=delta, tau=tau, C=C, Q0=Q0, P=P)


def shock_map(
    path: str | Path | None = None,
    *,
    C: Number = PUBLISHED["C"],
    Q0: Number | None = None,
    P: Number = PUBLISHED["P"],
    tau_max: Number = PUBLISHED["tau_max"],
    columns: int = 48,
    rows: int = 30,
) -> ShockMap:
    """Draw the map, into `path` where one is given; arguments and errors as `compute`.

    >>> shock_map().worst_error < 1e-9
    True
    """
    data = compute(C=C, Q0=Q0, P=P, tau_max=tau_max, columns=columns, rows=rows)
    with sheet(6.4, 4.3, path) as figure:
        axes, bar = figure.subplots(1, 2, width_ratios=(1, 0.035))
        _cells(axes, data)
        _boundaries(axes, data)
        _scale(bar)
    return ShockMap(**{**vars(data), "figure": figure})


def colours(loss: np.ndarray, surplus: np.ndarray) -> np.ndarray:
    """RGB of each loss by the source's law, alpha = 0.04 + 0.92 min(1, (L / 0.5)^0.75), laid over white."""
    alpha = 0.04 + 0.92 * np.minimum(1.0, (loss / SATURATION) ** 0.75)
    down, up = (np.array(colorsys.hls_to_rgb(hue, 0.42, 0.95)) for hue in HUES)
    pure = np.where(surplus[..., None], up, down)
    return 1 - alpha[..., None] * (1 - pure)


def _cells(axes: Axes, data: ShockMap) -> None:
    full = data.P / 1e9
    axes.imshow(
        colours(data.loss, np.broadcast_to(data.delta > 0, data.loss.shape)),
        extent=(-full, full, 0, data.tau_max),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 1.5, 2, 3, 5, 6, 10]))
    axes.set_xlabel(
        "mix step δ  [GB/s per prefill GPU]\n← shortfall drains the stock       surplus fills the headroom →"
    )
    axes.set_ylabel("cold start time τ  [s]")
    axes.set_title(f"$C$ = {data.C / 1e9:g} GB,  $Q_0$ = {data.Q0 / 1e9:g} GB,  $P$ = {full:g} GB/s per prefill GPU")


def _boundaries(axes: Axes, data: ShockMap) -> None:
    """The curves tau = T_hit(delta), and a word for what lies on either side of them."""
    full, top = data.P / 1e9, data.tau_max
    sides = ((-1, data.Q0, "decode\noutput lost"), (1, data.C - data.Q0, "prefill\nback-pressured"))
    for sign, stock, word in sides:
        fastest = stock / data.P
        if 0 < fastest < top:
            # Even in log tau, so that the steep part near delta = 0 is as smooth as the flat one.
            tau = np.geomspace(fastest, top, 400)
            axes.plot(sign * stock / tau / 1e9, tau, color="black", lw=1.3)
        middle = 0.75 * data.P
        if stock / middle < 0.8 * top:
            where = (int(0.6 * len(data.tau)), int(np.argmin(np.abs(data.delta - sign * middle))))
            ink = "white" if data.loss[where] > 0.25 else "black"
            height = max(0.6, (stock / middle / top + 1) / 2)
            axes.text(sign * middle / 1e9, height * top, word, ha="center", va="center", color=ink, weight="bold")

    high = 0.5 * top
    beside = (data.C - data.Q0) / high / 1e9
    if 0 < beside < 0.3 * full:
        note = {
            "arrowprops": {"arrowstyle": "-", "lw": 0.8, "shrinkB": 0},
            "ha": "left",
            "va": "center",
            "color": "black",
        }
        axes.annotate(
            r"$\tau = T_\mathrm{hit}(\delta)$", (beside, high), (beside + 0.1 * full, high + 0.06 * top), **note
        )
    _absorbed(axes, data)
    axes.set_xlim(-full, full)
    axes.set_ylim(0, top)


def _absorbed(axes: Axes, data: ShockMap) -> None:
    """The word inside its region at the foot of the map, or beside it where the region is too narrow to hold it."""
    full, top = data.P / 1e9, data.tau_max
    low = 0.05 * top  # the height of the word
    left, right = max(-full, -data.Q0 / low / 1e9), min(full, (data.C - data.Q0) / low / 1e9)
    centre = (left + right) / 2
    style: dict[str, Any] = {"ha": "center", "color": "black", "weight": "bold"}
    if right - left > 0.3 * full:
        axes.text(centre, 0.008 * top, "absorbed", va="bottom", **style)
        return
    box = {"boxstyle": "round,pad=0.25", "fc": "white", "ec": "none", "alpha": 0.9}
    arrow = {"arrowstyle": "-|>", "color": "black", "lw": 0.9, "shrinkB": 0}
    axes.annotate("absorbed", (centre, low / 2), (centre, 0.2 * top), va="center", bbox=box, arrowprops=arrow, **style)


def _scale(bar: Axes) -> None:
    """The colour law as a scale of its own: both hues side by side over the loss."""
    loss = np.linspace(0, 0.6, 240)
    pair = np.stack([colours(loss, np.full(loss.shape, side)) for side in (False, True)], axis=1)
    bar.imshow(pair, extent=(0, 1, 0, 0.6), origin="lower", aspect="auto", interpolation="nearest")
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.set_xticks([])
    bar.set_yticks(np.arange(0, 0.51, 0.1), [f"{x:.0%}" for x in np.arange(0, 0.41, 0.1)] + ["≥ 50%"])
    bar.set_ylabel("stranded flow L  [share of P, mean over 0 to τ]")
