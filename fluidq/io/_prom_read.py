"""From Prometheus series to windows of quantities, by the metric map; then to workload, measurements and state."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.io._files import short
from fluidq.io._prom_map import Entry, MetricMap, Pools, Product
from fluidq.io._prom_observed import Observed, State
from fluidq.io._prom_series import (
    Series,
    Tally,
    Windows,
    alive,
    blind,
    grid,
    increase,
    level,
    without_ranks,
)
from fluidq.measurements import QUANTITIES, Measurements
from fluidq.units import Number
from fluidq.workload import Workload

FORMAT = "Prometheus query JSON"
LEAST_OF = {"waiting": "waiting_least", "buffered": "buffered_least"}
FRESH = 3  # windows from the end in which a value still says where the fleet stands


class Reader:
    """One export on its way to an `Observed`: series by name, the grid of windows, the notes."""

    def __init__(
        self,
        source: str,
        table: MetricMap,
        product: str | None,
        pools: Pools,
        series: Sequence[Series],
        tally: Tally,
    ):
        self.source, self.table, self.pools, self.tally = source, table, pools, tally
        products = [p for p in table.products.values() if product in (None, p.name) or p.name == "kubernetes"]
        known = {name for p in products for entry in p.entries.values() for name in entry.series_names()}
        self.series: dict[str, list[Series]] = {}
        for one in series:
            if one.name in known or one.name in QUANTITIES:
                self.series.setdefault(one.name, []).append(one)
        if not self.series:
            names = sorted({s.name for s in series})
            raise InputError(
                f"no known series among {short(names, 200)}; known are those of {', '.join(table.products)} in "
                f"metrics.toml, which can be copied, edited and given (metrics=, --metrics)."
            )
        self.products = products
        sides = {pools.of(s.labels) for group in self.series.values() for s in group}
        self.split = {"prefill", "decode"} <= sides
        self.notes: list[str] = []
        self.used: dict[str, str] = {}

    def read(self, window: Number | None, prefill_worker: Number | None, decode_worker: Number | None) -> Observed:
        timed = [s for name, group in self.series.items() for s in group if not self._is_each(name)]
        self.edges, self.step = grid(timed, None if window is None else float(window))
        # Only windows in which some series has fresh samples measure anything.
        self.gaps = np.zeros(self.edges.size - 1, dtype=bool)
        columns: dict[str, Windows] = {}
        for product in self.products:
            for quantity, entry in product.entries.items():
                if quantity in columns or entry.kind == "each" or (entry.split and not self.split):
                    continue
                values = self._windows(product, entry)
                if values is None or np.isnan(values).all():
                    continue
                columns[quantity] = values
                self.used[quantity] = product.name
                if quantity in LEAST_OF and entry.kind == "gauge":
                    least = self._windows(product, entry, least=True)
                    if least is not None:
                        columns[LEAST_OF[quantity]] = least
        for quantity in QUANTITIES.keys() & self.series.keys() - columns.keys():
            columns[quantity] = self._combined(self.series[quantity], "mean", self._level())
        _derive(columns, prefill_worker, decode_worker)
        self._tell()
        origin = float(self.edges[0])
        workload, load = self._workload(columns)
        measurements = self._measurements(columns)
        return Observed(measurements, workload, self._state(columns), load, origin, tuple(self.notes))

    def _is_each(self, name: str) -> bool:
        entries = [e for p in self.products for e in p.entries.values() if name in e.series_names()]
        return bool(entries) and all(e.kind == "each" for e in entries)

    def _pick(self, names: Sequence[str], entry: Entry, product: Product) -> list[Series]:
        """The series of the first of `names` that has data, of the entry's pool and labels, one copy per rank."""
        for name in names:
            group = [
                s
                for s in self.series.get(name, [])
                if all(s.labels.get(k) == v for k, v in entry.where.items())
                and (not self.split or entry.pool is None or self.pools.of(s.labels) == entry.pool)
            ]
            if group:
                return without_ranks(group, product.ranks)
        return []

    def _windows(self, product: Product, entry: Entry, least: bool = False) -> Windows | None:
        """One value per window of an entry; None where it has no series."""
        width = np.diff(self.edges)
        if entry.kind == "histogram":
            for name in entry.names:
                total = self._growth([f"{name}_sum"], entry, product)
                count = self._growth([f"{name}_count"], entry, product)
                if total is not None and count is not None:
                    return entry.scale * _over(total, count)
            # Older releases export some of these as plain gauges.
            main = self._pick(entry.names, entry, product)
            return entry.scale * self._combined(main, "mean", self._level()) if main else None
        if entry.kind == "counter":
            total = self._growth(entry.names, entry, product)
            if total is None:
                return None
            total = self._with_others(total, entry, product, lambda names: self._growth(names, entry, product))
            if entry.per:
                other = self._growth(entry.per, entry, product)
                return None if other is None else entry.scale * _over(total, other)
            return entry.scale * total / width
        main = self._pick(entry.names, entry, product)
        if not main:
            return None
        if entry.kind == "count":
            return self._workers(main, entry.by)
        if entry.product:
            main = [s for s in (_of_labels(one, entry.product) for one in main) if s is not None]
            if not main:
                return None
        values = self._combined(main, entry.combine, self._level(least))

        def gauge(names: Sequence[str]) -> Windows | None:
            group = self._pick(names, entry, product)
            return self._combined(group, entry.combine, self._level(least)) if group else None

        values = self._with_others(values, entry, product, gauge)
        if entry.times:
            group = self._pick(entry.times, entry, product)
            if not group:
                return None
            values = values * self._combined(group, "mean", self._level())
        return entry.scale * values

    def _with_others(
        self,
        values: Windows,
        entry: Entry,
        product: Product,
        read: Callable[[Sequence[str]], Windows | None],
    ) -> Windows:
        for names, sign in ((entry.plus, 1.0), (entry.minus, -1.0)):
            other = read(names) if names else None
            if other is not None:
                values = np.maximum(values + sign * other, 0.0)
        return values

    def _growth(self, names: Sequence[str], entry: Entry, product: Product) -> Windows | None:
        group = self._pick(names, entry, product)
        if not group:
            return None
        self.gaps |= np.any([blind(s, self.edges, self.step) for s in group], axis=0)
        return np.sum([increase(s, self.edges, self.tally) for s in group], axis=0)

    def _level(self, least: bool = False) -> Callable[[Series], Windows]:
        return lambda one: level(one, self.edges, least)

    def _combined(self, group: Sequence[Series], how: str, read: Callable[[Series], Windows]) -> Windows:
        """Gauges of several series: where one that is there has a gap, the whole is not known; NaN where none is."""
        values = np.array([read(one) for one in group])
        there = np.array([alive(one, self.edges) for one in group])
        none = ~there.any(axis=0)
        unknown_ = (np.isnan(values) & there).any(axis=0)
        filled = np.where(there, values, 0.0)
        if how == "sum":
            out = filled.sum(axis=0)
        elif how == "mean":
            out = filled.sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        else:
            out = np.where(there, values, -math.inf).max(axis=0)
        return np.where(none | unknown_, math.nan, out)

    def _workers(self, group: Sequence[Series], by: Sequence[str]) -> Windows:
        """Distinct workers per window: series told apart by the first label of `by` that they have."""
        workers: dict[Any, np.ndarray] = {}
        for one in group:
            key = next((one.labels[label] for label in by if label in one.labels), tuple(sorted(one.labels.items())))
            workers[key] = workers.get(key, False) | alive(one, self.edges)
        return np.sum(list(workers.values()), axis=0).astype(np.float64)

    def _tell(self) -> None:
        t = self.tally
        products = sorted(set(self.used.values()))
        if products:
            self.notes.append(f"series of {', '.join(products)}")
        if not self.split and any(e.pool for p in self.products for e in p.entries.values() if p.name in products):
            self.notes.append(
                "no label tells the pools apart: series of all workers were taken together, and where both pools count "
                "a request it is counted twice (give patterns: pools=, --prefill-pods, --decode-pods)"
            )
        if t.not_finite:
            self.notes.append(f"{t.not_finite:,} samples were NaN or infinite and were left out")
        if t.twice:
            self.notes.append(f"{t.twice:,} samples had the time of another and were left out")
        if t.resets:
            self.notes.append(f"counters were reset {t.resets:,} times (restarts): counted on from 0")
        if self.gaps.any():
            self.notes.append(
                f"{int(self.gaps.sum()):,} of {self.gaps.size:,} windows lie in a gap of the samples: the workload has "
                f"the mean over the gap there, the measurements nothing"
            )

    def _workload(self, columns: Mapping[str, Windows]) -> tuple[Workload | None, str | None]:
        load = next((name for name in ("offered", "served") if f"{name}_rate" in columns), None)
        missing = [n for n in ("isl", "osl") if n not in columns]
        if load is None or missing:
            what = ["the request rate"] * (load is None) + [QUANTITIES[n].words for n in missing]
            self.notes.append(f"no workload: no series gives {' and '.join(what)}")
            return None, load
        rate = np.nan_to_num(columns[f"{load}_rate"])
        if not rate.any():
            self.notes.append("no workload: no request was counted")
            return None, load
        if load == "served":
            self.notes.append(
                "the rate is that of served requests, as no series counts offered ones: in overload it is too low"
            )
        isl, osl = (_filled(columns[name], rate) for name in ("isl", "osl"))
        computed = _filled(columns.get("isl_computed", columns["isl"]), rate)
        if isl is None or osl is None or computed is None or not (isl > 0).all() or not (osl > 0).all():
            self.notes.append("no workload: no window has both a rate and lengths")
            return None, load
        workload = Workload.from_windows(
            name=self.source.rsplit("/", 1)[-1],
            window=float(self.edges[1] - self.edges[0]),
            rate=rate,
            isl_stored=isl,
            osl=osl,
            isl_computed=np.minimum(computed, isl),
        )
        return workload, load

    def _measurements(self, columns: Mapping[str, Windows]) -> Measurements:
        count = self.edges.size - 1
        made = {name: np.where(self.gaps, math.nan, values) for name, values in columns.items()}
        made = {name: values for name, values in made.items() if not np.isnan(values).all()}
        # In float64, before anything reaches JAX: a Unix time in float32 is 128 s wide.
        made["time"] = self.edges[:-1] - self.edges[0]
        made["duration"] = np.diff(self.edges)
        starts = self._starts()
        return Measurements(
            source=self.source,
            format=FORMAT,
            kind="windows",
            columns=made,
            lines=np.arange(count, dtype=np.int64),
            facts={
                "topology": "disaggregated" if self.split else "unknown",
                "products": ", ".join(sorted(set(self.used.values()))),
            },
            notes=tuple(self.notes),
            detail=starts,
        )

    def _starts(self) -> Measurements | None:
        """Cold starts: one value per worker, the last sample of its series (less that of the other one)."""
        rows = []
        for product in self.products:
            entry = product.entries.get("cold_start")
            if entry is None or entry.kind != "each" or rows:
                continue
            others = {_identity(s): float(s.values[-1]) for s in self._pick(entry.minus, entry, product)}
            for one in self._pick(entry.names, entry, product):
                value = float(one.values[-1])
                if entry.minus:
                    value -= others.get(_identity(one), math.nan)
                if value > 0:
                    rows.append((len(rows), {"cold_start": entry.scale * value}))
        return Measurements.from_rows(self.source, FORMAT, "starts", rows) if rows else None

    def _state(self, columns: Mapping[str, Windows]) -> State:
        def last(name: str) -> float | None:
            values = columns.get(name)
            good = np.flatnonzero(~np.isnan(values)) if values is not None else np.array([], dtype=int)
            # A value of long ago is no state: one of the last three windows must have it.
            if values is None or not good.size or good[-1] < self.edges.size - 1 - FRESH:
                return None
            return float(values[good[-1]])

        def mean(name: str) -> float | None:
            values = columns.get(name)
            return None if values is None or np.isnan(values).all() else float(np.nanmean(values))

        lengths = {name: last(name) or mean(name) for name in ("isl", "isl_computed", "osl")}
        names = ("prefill_workers", "decode_workers", "waiting", "buffered", "running", "kv_use")
        return State(time=float(self.edges[-1]), **{name: last(name) for name in names}, **lengths)


def _identity(one: Series) -> tuple[Any, ...]:
    """What two series of one pod share: its namespace and name, or the instance."""
    labels = one.labels
    return tuple(labels.get(k) for k in ("namespace", "pod")) if "pod" in labels else (labels.get("instance"),)


def _of_labels(one: Series, labels: Sequence[str]) -> Series | None:
    """The series with the product of these labels as its value; None where one of them is no number."""
    try:
        value = math.prod(float(one.labels[label]) for label in labels)
    except (KeyError, ValueError):
        return None
    return Series(one.name, one.labels, one.times, np.full(one.times.shape, value)) if value > 0 else None


def _over(total: Windows, count: Windows) -> Windows:
    """Ratio of sums; NaN where nothing was counted: an idle window has no mean."""
    some = count > 1e-9
    return np.where(some, total / np.where(some, count, 1.0), math.nan)


def _filled(values: Windows, rate: Windows) -> Windows | None:
    """`values` with their mean, weighted by the rate, where there is none."""
    good = ~np.isnan(values) & (rate > 0)
    if not good.any():
        return None
    return np.where(np.isnan(values), float((values[good] * rate[good]).sum() / rate[good].sum()), values)


def _derive(columns: dict[str, Windows], prefill_worker: Number | None, decode_worker: Number | None) -> None:
    """Columns that follow from others, each only where it is not measured itself."""

    def put(name: str, parts: Sequence[str], make: Callable[..., Windows]) -> None:
        if name not in columns and all(part in columns for part in parts):
            columns[name] = make(*(columns[part] for part in parts))

    if "hit" in columns:
        columns["hit"] = np.clip(columns["hit"], 0.0, 1.0)
    put("isl_computed", ("computed_rate", "served_rate", "isl"), lambda c, s, i: np.minimum(_over(c, s), i))
    put("isl_computed", ("isl", "hit"), lambda isl, hit: isl * (1.0 - hit))
    put("computed_rate", ("served_rate", "isl_computed"), lambda rate, isl: rate * isl)
    put("output_rate", ("served_rate", "osl"), lambda rate, osl: rate * osl)
    put("input_rate", ("served_rate", "isl"), lambda rate, isl: rate * isl)
    if "transfer_rate" in columns:
        put("transfer_tokens", ("served_rate", "isl"), lambda rate, isl: rate * isl)
    for pool, gpus in (("prefill", prefill_worker), ("decode", decode_worker)):
        if gpus is not None:
            if not 0 < gpus < math.inf:
                raise refuse(f"{pool}_worker", gpus, "a number of GPUs > 0")
            put(f"{pool}_gpus", (f"{pool}_workers",), lambda n, g=float(gpus): n * g)
    put("prefill_rate", ("computed_rate", "prefill_gpus"), _over)
    put("decode_rate", ("output_rate", "decode_gpus"), _over)
    put("batch", ("running", "decode_gpus"), _over)
    if prefill_worker is not None and "prefill_time" in columns:
        columns["worker_gpus"] = np.full(columns["prefill_time"].shape, float(prefill_worker))
