"""The default process: diurnal load, Ornstein-Uhlenbeck mix, gamma-mixed Poisson counts; figures from public traces."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float64

# Where each figure was measured: `fluidq.workload.default_workload`.
PEAK, TROUGH, TROUGH_HOUR = 1.66, 0.47, 5.0
DISPERSION = 16.1
PHI, PHI_SD, PHI_STEP = 0.525, 0.087, 0.043
SWING_PHI, SWING_PHI_SD, SWING_WITH_LOAD = 0.762, 0.010, -0.20
CV_PREFILL, CV_DECODE, CORRELATION = 0.35, 0.12, -0.16


@dataclass(frozen=True)
class Mix:
    """ln(ISL/OSL): its OU process (stationary `sd`, time constant `tau` [s]), swing, and the share ISL takes."""

    sd: float
    tau: float
    swing: float
    isl_share: float


@cache
def mix_process() -> Mix:
    # phi = 1/(1 + exp(-(L + x))), x = the deviation of ln(ISL/OSL): the sd S of x at 60 s is the one for which phi has
    # the sd measured. To first order S = PHI_SD / (phi (1 - phi)); the quadrature adds what the curvature takes away.
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    centre = math.log(PHI / (1 - PHI))

    def phi_sd(s: float) -> float:
        phi = 1 / (1 + np.exp(-(centre + s * nodes)))
        return math.sqrt(np.average(phi**2, weights=weights) - np.average(phi, weights=weights) ** 2)

    total = _solve(phi_sd, PHI_SD, 0.01, 2.0)
    swing = SWING_PHI_SD / (SWING_PHI * (1 - SWING_PHI))
    ou = math.sqrt(total**2 - swing**2)
    # rms step^2 = 2 sd^2 (1 - rho), rho the correlation of one minute's mean with the next; the swing does not step.
    step = PHI_STEP * total / PHI_SD
    rho = 1 - step**2 / (2 * ou**2)
    # Means over T of an OU process, a = T/tau: variance sd^2 * 2 (a - 1 + e^-a) / a^2, covariance of neighbours
    # sd^2 (1 - e^-a)^2 / a^2. Their quotient is rho and gives tau; the variance then gives the point-wise sd.
    a = _solve(lambda a: -((1 - math.exp(-a)) ** 2) / (2 * (a - 1 + math.exp(-a))), -rho, 1e-3, 50.0)
    sd = ou / math.sqrt(2 * (a - 1 + math.exp(-a)) / a**2)
    # Input takes the share s of x, output 1 - s, the count n is independent: var(n ISL) - var(n OSL) = (2s - 1) var(x),
    # and var(x) is that of the difference of the two loads.
    spread = CV_PREFILL**2 + CV_DECODE**2 - 2 * CORRELATION * CV_PREFILL * CV_DECODE
    isl_share = (1 + (CV_PREFILL**2 - CV_DECODE**2) / spread) / 2
    return Mix(sd=sd, tau=60.0 / a, swing=swing, isl_share=isl_share)


def totals(
    rng: np.random.Generator, n: int, window: float, rate: float, isl: float, osl: float, hit: float
) -> Float64[np.ndarray, "4 {n}"]:
    """Requests, computed, stored and output tokens of `n` windows of `window` seconds from midnight on.

    `rate` is the daily mean [req/s], `isl` and `osl` the mean lengths [tokens], `hit` the cached share of the input.
    """
    angle = 2 * np.pi * ((np.arange(n) + 0.5) * window / 3600 - TROUGH_HOUR) / 24
    # 1 - A cos + B cos 2: the least value 1 - A + B at the trough hour, the greatest 1 + A + B twelve hours later.
    first, second = (PEAK - TROUGH) / 2, (PEAK + TROUGH) / 2 - 1
    expected = rate * window * (1 - first * np.cos(angle) + second * np.cos(2 * angle))
    # Gamma increments of mean m and variance (D - 1) m, then Poisson: mean m, variance D m.
    counts = rng.poisson(rng.gamma(expected / (DISPERSION - 1), DISPERSION - 1)).astype(np.float64)
    mix = mix_process()
    x = mix.sd * ou_means(n, window / mix.tau, rng)
    x += math.sqrt(2) * mix.swing * np.cos(angle - np.pi - math.acos(SWING_WITH_LOAD))
    variance = mix.sd**2 + mix.swing**2
    up, down = mix.isl_share, mix.isl_share - 1
    stored = isl * np.exp(up * x - up**2 * variance / 2)
    output = osl * np.exp(down * x - down**2 * variance / 2)
    return counts * np.stack([np.ones(n), (1 - hit) * stored, stored, output])


def ou_means(n: int, a: float, rng: np.random.Generator) -> np.ndarray:
    """Means over n successive windows of a stationary OU process of unit variance, a = window / time constant.

    Exact for every a: the end value and the mean of a window are jointly normal given the value at its start.
    """
    e = math.exp(-a)
    end, cross, mean = 1 - e**2, (1 - e) ** 2 / a, (2 * a - 3 + 4 * e - e**2) / a**2
    if a < 1e-3:  # the closed forms cancel
        end, cross, mean = 2 * a, a, 2 * a / 3
    z = rng.standard_normal((2, n))
    shocks = math.sqrt(end) * z[0]
    starts = np.fromiter(
        itertools.accumulate(shocks[:-1], lambda x, s: e * x + s, initial=float(rng.standard_normal())), float, n
    )
    own = cross / math.sqrt(end)
    return starts * (-math.expm1(-a) / a) + own * z[0] + math.sqrt(max(mean - own**2, 0.0)) * z[1]


def _solve(f: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where the increasing f takes `value`, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < value else (low, middle)
    return (low + high) / 2
