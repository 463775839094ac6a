"""Many designs at once: every combination of model, GPU, lengths and NIC, sized in one batch.

>>> from fluidq.designs import designs
>>> table = designs(["GLM-5.2", "Qwen3-32B"], ["B200", "H200"], isl=[1024, 8192], osl=[256], nic=["100Gbps", "400Gbps"])
>>> len(table), table.row(0)["model"], sorted(table.columns)[:4]
(16, 'GLM-5.2', ['batch', 'binds', 'cost', 'decode_gpus'])
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fluidq import catalog
from fluidq._errors import InputError, refuse, unknown
from fluidq._numerics import Scalar
from fluidq._size_cost import HOUR, Design, work
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.units import Number, Quantity, si

MOST_DESIGNS = 5_000_000
# What sets the throughput of a design, in the order of the codes in `Designs.binds`.
BINDS = ("prefill", "ttft", "decode", "send", "receive", "fabric")
# Workers of a fleet: a power of two above any that `fluidq.sizing.MOST_GPUS` allows.
_HALVINGS = 21


@dataclass(frozen=True)
class Designs:
    """A table of designs as columns, one value per design; `row(i)` is one of them.

    `fits` says whether a design can be: one worker of each pool in the fleet, weights and one sequence in HBM, limits
    that some batch and load keep. Where it cannot, throughput is 0 and cost infinite.
    """

    models: tuple[str, ...]
    gpu_names: tuple[str, ...]
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return int(self.columns["phi"].size)

    def row(self, index: int) -> dict[str, Any]:
        """One design by names and plain numbers."""
        out: dict[str, Any] = {name: values[index].item() for name, values in self.columns.items()}
        out["model"], out["gpu"] = self.models[out["model"]], self.gpu_names[out["gpu"]]
        out["binds"] = BINDS[out["binds"]]
        return out

    def best(self, column: str = "cost", among: np.ndarray | None = None) -> dict[str, Any]:
        """The design with the least cost, or with the most of another column, of those that fit.

        Raises:
            InputError: an unknown column, or no design that fits.
        """
        if column not in self.columns:
            raise unknown("column", column, self.columns)
        fits = self.columns["fits"] if among is None else self.columns["fits"] & among
        if not fits.any():
            raise InputError("no design fits; give more GPUs, looser limits or shorter lengths.")
        values = self.columns[column].astype(float)
        values = values if column == "cost" else -values
        return self.row(int(np.argmin(np.where(fits, values, np.inf))))


def designs(
    models: Sequence[str],
    gpus: Sequence[str],
    isl: Sequence[Quantity] | np.ndarray,
    osl: Sequence[Quantity] | np.ndarray,
    nic: Sequence[Quantity] | np.ndarray,
    *,
    fleet: Number = 64,
    hit: Quantity = 0.0,
    hit_decode: Quantity = 0.0,
    tpot: Quantity | None = None,
    ttft: Quantity | None = None,
    batch: Number | None = None,
    accept: Number = 1.0,
    prices: Mapping[str, Number] | None = None,
    own: catalog.Catalog | str | None = None,
) -> Designs:
    """Size every combination; the last list varies fastest. What `fluidq.sizing.size` finds for one, in arrays.

    Args:
        models, gpus: names of the catalogue. isl, osl: stored tokens. nic: links of a GPU.
        fleet: GPUs of each design. hit, hit_decode: as in `size`.
        tpot, ttft, batch: limits; without any the batch is what fits in HBM.
        accept: output tokens per step.
        prices: of a GPU-hour by GPU; default 1 for each.
        own: a catalogue, or a TOML file to lay over the one that is shipped.

    Raises:
        InputError: an empty list, an unknown name, a value out of range, or more than five million designs.
    """
    lists = {"models": models, "gpus": gpus, "isl": isl, "osl": osl, "nic": nic}
    for name, values in lists.items():
        if isinstance(values, str) or not len(values):
            raise refuse(name, values, "a list of at least one")
    count = math.prod(len(values) for values in lists.values())
    if count > MOST_DESIGNS:
        raise refuse("designs", count, f"at most {MOST_DESIGNS:,}")
    if isinstance(fleet, bool) or fleet != int(fleet) or not 1 <= fleet <= 1_000_000:
        raise refuse("fleet", fleet, "a whole number of GPUs from 1 to 1,000,000")
    book = own if isinstance(own, catalog.Catalog) else catalog.load(own)
    tokens_in = np.array([si(_plain(v), "tokens", "isl", minimum=0.0) for v in isl])
    tokens_out = np.array([si(_plain(v), "tokens", "osl", minimum=0.0) for v in osl])
    links = np.array([si(_plain(v), "bytes/s", "nic", above=0.0) for v in nic])
    limits = {
        "tpot": math.inf if tpot is None else si(tpot, "seconds", "tpot", above=0.0),
        "ttft": math.inf if ttft is None else si(ttft, "seconds", "ttft", above=0.0),
        "batch": math.inf if batch is None else si(batch, "1", "batch", above=0.0),
        "accept": si(accept, "1", "accept", minimum=1.0),
    }
    known = [book.gpu(name).name for name in gpus]
    priced = _prices(prices, known)
    pairs = [Deployment.preset(m, g, own=book) for m in models for g in gpus]
    m, g, i, o, n = (axis.ravel() for axis in np.meshgrid(*(np.arange(len(v)) for v in lists.values()), indexing="ij"))
    pair = m * len(gpus) + g
    one = Traffic.of(1.0, 1.0, hit, hit_decode)  # shares of a prompt of one token

    def of_pair(name: str, share: float = 1.0) -> np.ndarray:
        return np.array([float(getattr(d, name)) * share for d in pairs])[pair]

    stored, out = tokens_in[i], tokens_out[o]
    x = Design(
        r_P=of_pair("r_P"),
        t_step_a=of_pair("t_step_a"),
        t_step_b=of_pair("t_step_b"),
        t_step_c=of_pair("t_step_c"),
        kappa=of_pair("kappa_store"),
        hbm=of_pair("hbm"),
        weights=of_pair("weights") / of_pair("gpus_per_decode_worker"),
        nic=links[n],
        isl=stored,
        osl=out,
        computed=one.computed * stored,
        moved=one.moved * stored,
        attended=one.attended * stored * stored,
        context=stored + 0.5 * np.maximum(out - 1, 0.0),
        g_P=of_pair("gpus_per_prefill_worker"),
        g_D=of_pair("gpus_per_decode_worker"),
        price_prefill=priced[g],
        price_decode=priced[g],
        **limits,
    )
    found = {name: np.asarray(value) for name, value in _evaluate(_arrays(x, count), float(fleet)).items()}
    return Designs(
        models=tuple(book.model(name).name for name in models),
        gpu_names=tuple(known),
        columns={"model": m, "gpu": g, "isl": stored, "osl": out, "nic": links[n], **found},
    )


def _plain(value: Quantity | np.generic) -> Quantity:
    """A number of an array as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _arrays(x: Design, count: int) -> Design:
    """Every field an array of the batch, so that one compiled function serves each batch of that size."""
    full = {k: np.broadcast_to(np.asarray(v, float), (count,)) for k, v in x._asdict().items() if v is not None}
    return x._replace(**full)


@jax.jit
def _evaluate(x: Design, fleet: Scalar) -> dict[str, Array]:
    """Batch, phi, whole split, throughput, what binds, and cost."""
    w = work(x)
    isl, osl = jnp.asarray(x.isl), jnp.asarray(x.osl)
    g_P, g_D = jnp.asarray(x.g_P), jnp.asarray(x.g_D)
    # A pool without work gets no GPUs, and sets no limit.
    has_P, has_D = isl > 0, osl > 0
    good = (w.load > 0) & ((w.batch * g_D >= 1) | ~has_D) & jnp.isfinite(w.own_P + w.own_D)
    good &= (has_P | has_D) & (jnp.where(has_P, g_P, 0) + jnp.where(has_D, g_D, 0) <= fleet)
    t_P, t_D = jnp.where(good, w.t_P, 1.0), jnp.where(good, w.t_D, 1.0)

    def pools(workers: Array) -> tuple[Array, Array, Array, Array]:
        n_P = workers * g_P
        n_D = jnp.where(has_D, jnp.floor((fleet - n_P) / g_D) * g_D, 0.0)
        rate_P = jnp.where(has_P, n_P / jnp.where(t_P > 0, t_P, 1.0), jnp.inf)
        rate_D = jnp.where(has_D, n_D / jnp.where(t_D > 0, t_D, 1.0), jnp.inf)
        return n_P, n_D, rate_P, rate_D

    # Prefill's rate rises with its workers, decode's falls: halve to the last count at which prefill is the slower.
    top = jnp.where(has_P, jnp.floor(fleet / g_P), 0.0)

    def halve(_: Scalar, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = jnp.floor(0.5 * (low + high + 1))
        _, _, rate_P, rate_D = pools(middle)
        slower = rate_P <= rate_D
        return jnp.where(slower, middle, low), jnp.where(slower, high, middle - 1)

    low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(top), top))
    here, more = pools(low), pools(jnp.minimum(low + 1, top))
    better = jnp.minimum(more[2], more[3]) > jnp.minimum(here[2], here[3])
    n_P, n_D, rate_P, rate_D = (jnp.where(better, b, a) for a, b in zip(here, more, strict=True))
    rate = jnp.where(good, jnp.minimum(rate_P, rate_D), 0.0)
    by_load = jnp.where(w.load < x.headroom, 1, 0)
    prefill = jnp.where(w.t_P > w.own_P, 3, by_load)
    decode = jnp.where(w.t_D > w.own_D, 4, 2)
    spend = (x.price_prefill * n_P + x.price_decode * n_D) / HOUR
    served = jnp.where(rate > 0, rate, 1.0) * jnp.where(isl + osl > 0, isl + osl, 1.0)
    total = jnp.where(good, w.own_P + w.own_D, 1.0)
    return {
        "fits": good & (rate > 0),
        "batch": jnp.where(has_D, w.batch, 0.0),
        "t_step": w.t_step,
        "phi": jnp.where(good, w.own_P, 0.0) / total,
        "prefill_gpus": jnp.where(good, n_P, 0.0),
        "decode_gpus": jnp.where(good, n_D, 0.0),
        "throughput": rate,
        "binds": jnp.where(rate_P <= rate_D, prefill, decode),
        "cost": jnp.where(rate > 0, spend / served * 1e6, jnp.inf),
    }


def _prices(prices: Mapping[str, Number] | None, gpus: Sequence[str]) -> np.ndarray:
    if prices is None:
        return np.ones(len(gpus))
    lower = {name.lower(): float(price) for name, price in prices.items()}
    for name in gpus:
        price = lower.get(name.lower())
        if price is None:
            raise refuse(f"price of {name}", None, "given, as those of other GPUs are")
        if not (math.isfinite(price) and price > 0):
            raise refuse(f"price of {name}", price, "a price of a GPU-hour > 0")
    return np.array([lower[name.lower()] for name in gpus])
