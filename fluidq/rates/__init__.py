"""Rates of the two pools, r_P(ISL) and t_step(B, context), by three routes on one interface.

`Roofline` from plain figures (or `from_catalog`), `FittedRates` from smooth laws fitted to a grid (`fit_prefill`,
`fit_step`), `TabledRates` from the grid itself. Each has `prefill_time`, `prefill_rate`, `step_time`; all of them can
be differentiated and mapped. `Memory` says what batch fits.

>>> rates = FittedRates(prefill=(0.0227, 1.89e-4, 3.9e-9), step=(0.0219, 2.15e-4, 3.38e-8), prefill_gpus=1)
>>> round(float(rates.prefill_rate(8192))), round(float(rates.step_time(128, 4096)), 4)
(4470, 0.0671)
"""

from fluidq.rates._fits import Fit as Fit
from fluidq.rates._fits import FittedRates as FittedRates
from fluidq.rates._fits import fit_prefill as fit_prefill
from fluidq.rates._fits import fit_step as fit_step
from fluidq.rates._from_catalog import from_catalog as from_catalog
from fluidq.rates._interface import AbstractRates as AbstractRates
from fluidq.rates._memory import Memory as Memory
from fluidq.rates._roofline import DENSE as DENSE
from fluidq.rates._roofline import EXPERTS as EXPERTS
from fluidq.rates._roofline import PEAK as PEAK
from fluidq.rates._roofline import Efficiency as Efficiency
from fluidq.rates._roofline import Roofline as Roofline
from fluidq.rates._roofline import Side as Side
from fluidq.rates._tables import Curves as Curves
from fluidq.rates._tables import TabledRates as TabledRates

__all__ = [
    "DENSE",
    "EXPERTS",
    "PEAK",
    "AbstractRates",
    "Curves",
    "Efficiency",
    "Fit",
    "FittedRates",
    "Memory",
    "Roofline",
    "Side",
    "TabledRates",
    "fit_prefill",
    "fit_step",
    "from_catalog",
]
