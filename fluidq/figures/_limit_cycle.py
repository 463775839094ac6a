"""The limit cycle of a threshold autoscaler, exact, against D17; why early rejection oscillates in Mooncake."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq import events
from fluidq.figures._overlay import OWN, Mark, Reproduced, dot, source, table
from fluidq.formulas import control

SOURCE = (
    "D17, simulated figures of the theory (V20); the oscillation: arXiv 2407.00079 (Mooncake), figures 9 and 10 (shape)"
)
CAPTION = (
    "Two thresholds and a lead time make the stock swing for ever, past each threshold by what flows in a lead time: "
    "the exact engine sits on the closed form, and amplitude and period grow in proportion to the lead time."
)
SIZE = (8.6, 3.5)
LOW, HORIZON = 6.0, 90.0
LEADS = (0.5, 1.5, 3.0, 4.5, 6.0)


def compute() -> Reproduced:
    """One path of the relay at the theory's figures, and its cycle over the lead time by engine and by formula."""
    given = table()["relay"]
    rates = {"fill": given["fill"], "drain": given["drain"]}
    band: dict[str, float] = {"theta_h": LOW + given["gap"], "theta_l": LOW}
    path = _follow(given["tau"], HORIZON)
    lead = np.linspace(0.05, 6.5, 60)
    curves: dict[str, Any] = {
        "time": np.asarray(path.time),
        "level": np.asarray(path.level),
        "lead": lead,
        "amplitude": np.asarray(control.cycle_amplitude(tau=lead, **band, **rates)),
        "period": np.asarray(control.cycle_period(tau=lead, **band, **rates)),
        "leads": np.array(LEADS),
    }
    cycles = [_follow(tau, 12 * _period(tau)).cycle() for tau in LEADS]
    curves["amplitudes"] = np.array([float(c.amplitude) for c in cycles])
    curves["periods"] = np.array([float(c.period) for c in cycles])
    at = LEADS.index(given["tau"])
    peak = float(control.cycle_peak(theta_h=band["theta_h"], fill=rates["fill"], tau=given["tau"]))
    trough = float(control.cycle_trough(theta_l=LOW, drain=rates["drain"], tau=given["tau"]))
    words = source("relay")
    marks = [
        Mark(
            "amplitude of the cycle",
            "GB",
            given["amplitude"],
            curves["amplitudes"][at],
            1e-3,
            words,
            OWN,
            note="time steps",
        ),
        Mark("period of the cycle", "s", given["period"], curves["periods"][at], 1e-3, words, OWN, note="time steps"),
    ]
    closed = max(
        abs(float(c.amplitude) / float(control.cycle_amplitude(tau=tau, **band, **rates)) - 1)
        for tau, c in zip(LEADS, cycles, strict=True)
    )
    return Reproduced(CAPTION, tuple(marks), curves, {"peak": peak, "trough": trough, "engine_error": closed})


def _period(tau: float) -> float:
    given = table()["relay"]
    return float(
        control.cycle_period(theta_h=LOW + given["gap"], theta_l=LOW, fill=given["fill"], drain=given["drain"], tau=tau)
    )


def _follow(tau: float, horizon: float) -> events.Run:
    """One worker more or less: the level rises at `fill` with the fewer and falls at `drain` with the more."""
    given = table()["relay"]
    each = given["fill"] + given["drain"]
    return events.run(
        horizon, P=each + given["fill"], C=30.0, Q0=LOW, mu=each, workers=1.0, theta_h=LOW + given["gap"], theta_l=LOW,
        tau=tau, min_workers=1.0, max_workers=2.0,
    )  # fmt: skip


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the path, right amplitude and period over the lead time."""
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    given = table()["relay"]
    left.plot(data.curves["time"], data.curves["level"])
    for level, words in ((LOW, "θ low"), (LOW + given["gap"], "θ high")):
        left.axhline(level, color="0.5", lw=0.8, ls="--")
        left.text(HORIZON * 1.01, level, words, va="center", fontsize=8)
    for name in ("peak", "trough"):
        left.axhline(data.numbers[name], color="0.1", lw=0.8, ls=":")
        left.text(HORIZON * 1.01, data.numbers[name], f"{name}, D17", va="center", fontsize=8)
    left.set(xlim=(0, HORIZON), ylim=(0, 14))
    left.set_xlabel("time  [s]")
    left.set_ylabel("stock  [GB]")
    left.set_title(f"lead time {given['tau']:g} s, +{given['fill']:g} / -{given['drain']:g} GB/s")
    for k, (name, unit) in enumerate((("period", "s"), ("amplitude", "GB"))):
        colour, style = f"C{k}", "-" if k == 0 else "--"
        right.plot(
            data.curves["lead"], data.curves[name], color=colour, ls=style, label=f"{name}, closed form  [{unit}]"
        )
        right.plot(
            data.curves["leads"],
            data.curves[f"{name}s"],
            "x",
            color=colour,
            ms=7,
            mew=1.6,
            label=f"{name}, exact engine",
        )
    for mark in data.marks:
        right.plot([given["tau"]], [mark.published], **dot(mark), zorder=5)
    right.set(xlim=(0, 6.5), ylim=(0, 55))
    right.set_xlabel("lead time τ  [s]")
    right.set_ylabel("period  [s],  amplitude  [GB]")
    right.set_title("squares: time-stepped simulation")
    right.legend(handles=right.get_lines()[:4], loc="upper left")
