"""What a file is and what it holds: traces, tables of rates, length sets, tables, profiles, benchmark results."""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluidq._errors import InputError
from fluidq.io import traces
from fluidq.io._files import PathLike, pieces, read_json, short
from fluidq.io._formats import csv_requests, lengths, rates, tables
from fluidq.io._formats._rows import Rows
from fluidq.io._formats._table import check_header, header_of
from fluidq.io._opening import CUT, Opening, after, chain, opening, records
from fluidq.workload import Number

DISTSERVE = {"prefill": 3, "decoding_smallbs": 3, "decoding_largebs": 3}


@dataclass
class Inspection:
    """What `inspect_file` found; None stands for what the file does not hold.

    `format` names the kind of file. `rows` = `kept` + `dropped`; `reasons` says why, by line. `requests` and
    `duration_s` [s] of a load, `mean_isl`, `mean_isl_computed` and `mean_osl` [tokens] over its requests,
    `peak_to_mean` of its rate in windows of `window_s` [s] (whole ones only). `columns` of a table, with the `ranges`
    of those that are numbers. `more` holds what only this kind of file has.
    """

    file: str
    format: str
    rows: int
    kept: int
    dropped: int
    requests: float | None = None
    duration_s: float | None = None
    mean_isl: float | None = None
    mean_isl_computed: float | None = None
    mean_osl: float | None = None
    peak_to_mean: float | None = None
    window_s: float | None = None
    columns: list[str] = field(default_factory=list)
    ranges: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, the reasons as [line, reason] (the first 100)."""
        names = (
            "file", "format", "rows", "kept", "dropped", "requests", "duration_s", "mean_isl", "mean_isl_computed",
            "mean_osl", "peak_to_mean", "window_s", "columns", "ranges", "notes",
        )  # fmt: skip
        out = {name: getattr(self, name) for name in names}
        return {**out, "reasons": [list(reason) for reason in self.reasons[:100]], **self.more}

    def __str__(self) -> str:
        dropped = f", {self.kept:,} kept, {self.dropped:,} dropped" if self.dropped else ""
        lines = [f"{_clean(self.file, 4096)}: {self.format}", f"  rows          {self.rows:,}{dropped}"]
        hit = ""
        if self.mean_isl and self.mean_isl_computed is not None and self.mean_isl_computed < self.mean_isl:
            hit = f" ({1 - self.mean_isl_computed / self.mean_isl:.1%} from the prefix cache)"
        figures = (
            ("requests", self.requests, ",.0f", ""),
            ("duration", self.duration_s, ",.1f", " s"),
            ("mean ISL", self.mean_isl, ",.1f", " tokens"),
            ("  computed", self.mean_isl_computed, ",.1f", f" tokens{hit}"),
            ("mean OSL", self.mean_osl, ",.1f", " tokens"),
            ("peak / mean", self.peak_to_mean, ".2f", f" in windows of {self.window_s:g} s" if self.window_s else ""),
        )
        lines += [f"  {name:<13} {value:{form}}{unit}" for name, value, form, unit in figures if value is not None]
        if self.shown:
            width = min(max(map(len, self.shown)), 30)
            lines += [f"  columns       {len(self.columns)}"]
            lines += [f"    {_clean(name):<{width}}  {words}" for name, words in self.shown.items()]
        elif self.columns:
            lines.append(f"  columns       {', '.join(_clean(name) for name in self.columns)}")
        lines += [
            f"  {name:<13} {value}" for name, value in self.more.items() if value and type(value) in (int, float, str)
        ]
        lines += [f"  note          {note}" for note in self.notes]
        lines += [f"  line {line}: {reason}" for line, reason in self.reasons[:5]]
        if self.dropped > 5:
            lines.append(f"  and {self.dropped - min(5, len(self.reasons)):,} more dropped rows")
        return "\n".join(lines)


def inspect_file(path: PathLike, window: Number = 60.0) -> Inspection:
    """What a file is, told from its content, and what it holds.

    Knows every trace and table of rates of `read_trace`, length sets, the tables and profiles listed in
    `fluidq.io._formats.tables`, benchmark results and saved Prometheus responses; any other CSV is shown as a table.
    `window` [s] is that of `peak_to_mean` for a trace of requests (partly filled windows at its end are left out).

    Raises `InputError`, naming file and line, for a file that cannot be read or is none of these.
    """
    file = os.fsdecode(path)
    seconds = traces.window_seconds(window)
    if next(pieces(file), b"").startswith(b"PK\x03\x04"):
        return _archive(file)
    line, first, blocks = opening(file, traces.REMEDY)
    objects = [record for record in records(blocks) if isinstance(record, dict)]
    if any({"input_length", "input_tokens"} & set(record) for record in objects):
        rows = Rows(file, strict=False)
        found = traces.lengths_of(rows, line, first, blocks)
        return _load(file, seconds) if found is None else _lengths(rows, found)
    if first.lstrip()[:1] in ("{", "["):
        return _json(file, line, first, len(objects))
    names = header_of(first)
    known = tables.table_of(names)
    if known is None:
        rows = Rows(file, strict=False)
        found = traces.lengths_of(rows, line, first, blocks)
        if found is not None:
            return _lengths(rows, found)
        if csv_requests.layout_of(names) or _is_rates(file, line, names):
            return _load(file, seconds)
    return _table(file, line, first, blocks, known)


def _is_rates(file: str, line: int, names: list[str]) -> bool:
    return len(names) <= 100 and rates.columns_of(file, line, names) is not None


def _load(file: str, window: float) -> Inspection:
    """A trace of requests or a table of rates."""
    load = traces.load_trace(file)
    report, data = load.report, load.data
    out = Inspection(
        file, report.format, report.rows, report.kept, report.dropped, notes=report.notes, reasons=report.reasons
    )
    if isinstance(data, rates.Rates):
        out.requests, out.duration_s, out.peak_to_mean = data.requests, data.duration, data.peak_to_mean
        out.mean_isl, out.mean_isl_computed = data.mean(data.isl), data.mean(data.computed)
        out.mean_osl, out.window_s = data.mean(data.osl), float(np.median(data.step))
        return out
    out.requests, out.duration_s = float(data.time.size), report.span
    out.mean_isl, out.mean_osl = float(data.isl.mean()), float(data.osl.mean())
    out.mean_isl_computed = float(data.computed.mean())
    out.more["failed"] = report.failed
    traces.check_windows(file, report.span, window, load.lines)
    whole = int(report.span // window)
    if whole > 1:  # of one window the peak is the mean
        index = np.floor(data.time / window).astype(np.int64)
        counts = np.bincount(index[index < whole], minlength=whole)
        out.peak_to_mean, out.window_s = float(counts.max() / counts.mean()), window
    return out


def _lengths(rows: Rows, found: lengths.Lengths) -> Inspection:
    rows.check_some(traces.REMEDY)
    out = Inspection(
        rows.file, found.name, len(rows) + rows.dropped, len(rows), rows.dropped, notes=rows.notes, reasons=rows.reasons
    )
    if found.everyone is not None:
        out.requests, (out.mean_isl, out.mean_osl) = float(found.rows), found.everyone
        out.mean_isl_computed = out.mean_isl
    else:
        out.more["clients"] = found.clients
    return out


def _table(file: str, line: int, first: str, blocks: Opening, known: tables.Table | None) -> Inspection:
    names = header_of(first)
    if known is None and (len(names) < 2 or not any(name and not name[0].isdigit() for name in names)):
        raise InputError(f"{file}, line {line}: {short(first)} is no header of a table; it must be {traces.REMEDY}.")
    check_header(file, line, names)
    rows = Rows(file, strict=False)
    found = tables.read(rows, known, names, after(line, chain(blocks)))
    if not len(rows) and not rows.dropped:
        raise InputError(f"{file} holds a header and no rows.")
    rows.check_some(traces.REMEDY)
    if blocks.cut:
        rows.notes.append(CUT)
    numeric = {name: c for name, c in found.columns.items() if c.filled and c.numbers == c.filled}
    return Inspection(
        file,
        known.name if known else "CSV table",
        len(rows) + rows.dropped,
        len(rows),
        rows.dropped,
        peak_to_mean=found.peak_to_mean,
        columns=list(found.columns),
        ranges={name: [column.least, column.most] for name, column in numeric.items()},
        notes=rows.notes,
        reasons=rows.reasons,
        shown={name: column.show() for name, column in found.columns.items()},
    )


def _json(file: str, line: int, first: str, objects: int) -> Inspection:
    """A benchmark result, Prometheus responses, or a table of coefficients; `objects` are on the first lines."""
    from fluidq.io import benchmarks

    if benchmarks.detect(file) is not None:
        return _from_summary(file, benchmarks.summary(file))
    value = read_json(file) if objects < 2 else None
    if isinstance(value, dict) and (found := _distserve(file, value)) is not None:
        return found
    raise InputError(
        f"{file}, line {line}: JSON that is no trace, profile or benchmark result known here ({short(first)}); "
        f"it must be {traces.REMEDY}."
    )


def _from_summary(file: str, summary: dict[str, Any]) -> Inspection:
    """The figures of another reader, which names them alike."""
    known = set(Inspection.__dataclass_fields__) - {"file", "more", "shown", "columns", "ranges", "reasons"}
    given = {name: value for name, value in summary.items() if name in known}
    given = {"rows": 0, "kept": 0, "dropped": 0, **given}
    more = {name: value for name, value in summary.items() if name not in known}
    return Inspection(file, more=more, **given)


def _distserve(file: str, value: dict[str, Any]) -> Inspection | None:
    """DistServe's coefficients: model -> tensor parallelism -> three coefficients [ms] of each phase."""
    entries = [
        (model, tp, entry)
        for model, by_tp in value.items()
        if isinstance(by_tp, dict)
        for tp, entry in by_tp.items()
        if isinstance(entry, dict) and set(DISTSERVE) & set(entry)
    ]
    if not entries:
        return None
    reasons = []
    for at, (model, tp, entry) in enumerate(entries, 1):
        for name, size in DISTSERVE.items():
            given = entry.get(name)
            sound = isinstance(given, list) and len(given) == size
            if not sound or not all(type(v) in (int, float) and np.isfinite(v) for v in given or ()):
                where = f"{short(model)}, tensor parallelism {short(tp)}"
                reasons.append((at, f"{where}: {name} is {short(given)}; it must be {size} finite numbers."))
                break
    kept = len(entries) - len(reasons)
    if not kept:
        raise InputError(f"{file} has no usable entry. The first: {reasons[0][1]}")
    return Inspection(
        file,
        "DistServe latency coefficients",
        len(entries),
        kept,
        len(reasons),
        columns=["model", "tensor_parallel", *DISTSERVE],
        notes=[f"models: {', '.join(_clean(model) for model in value)}; coefficients in ms"],
        reasons=reasons,
    )


def _archive(file: str) -> Inspection:
    """An npz file: a Dynamo profile, or arrays of any kind."""
    from fluidq.io import benchmarks
    from fluidq.io._bench_points import arrays_of

    arrays = arrays_of(file)
    if not arrays:
        raise InputError(f"{file} holds no arrays.")
    numeric = {
        name: values for name, values in arrays.items() if values.dtype.kind in "iuf" and np.isfinite(values).any()
    }
    ranges = {
        name: [float(np.nanmin(v[np.isfinite(v)])), float(v[np.isfinite(v)].max())] for name, v in numeric.items()
    }
    size = max(values.size for values in arrays.values())
    out = Inspection(file, f"NumPy archive of {len(arrays)} arrays", size, size, 0)
    if benchmarks.detect(file) is not None:
        out = _from_summary(file, benchmarks.summary(file))
        out.mean_isl = out.mean_isl_computed = out.mean_osl = None  # of the grid, not of any load
    out.columns, out.ranges = list(arrays), ranges
    out.shown = {name: f"{values.dtype} of shape {values.shape}" for name, values in arrays.items()}
    return out


def _clean(text: str, most: int = 80) -> str:
    """Text of a file without control characters, which a terminal would obey, cut at `most` characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
