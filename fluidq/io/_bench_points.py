"""InferenceX aggregate JSON (seconds; input per prefill GPU, output per decode GPU) and Dynamo profile npz."""

import io
import math
import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np

from fluidq._errors import InputError
from fluidq.io._bench_fields import SECONDS, Fields, consistent, latencies
from fluidq.io._files import open_bytes, short
from fluidq.measurements import Measurements

INFERENCEX, DYNAMO = "InferenceX aggregate JSON", "Dynamo profile npz"
LATENCIES = {name: name for name in ("ttft", "tpot", "itl", "e2el")}
PREFILL = ("prefill_isl", "prefill_ttft")
DECODE = ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")
MOST_BYTES = 64 << 20
MOST_ARRAYS = 64


def recognise(record: dict[str, Any]) -> str | None:
    """InferenceX is the one that gives throughput per GPU beside nominal lengths and a concurrency."""
    return INFERENCEX if {"isl", "osl", "conc", "tput_per_gpu"} <= record.keys() else None


def read_points(file: str, records: list[tuple[int, dict[str, Any]]], time_unit: str | None) -> Measurements:
    """One row per point; lengths are the measured means where the latencies give them, else the nominal ones."""
    factor = SECONDS[time_unit or "s"]
    notes = ["times were read as milliseconds, as stated; the format writes seconds"] if time_unit == "ms" else []
    rows, models, kinds, nominal = [], set(), set(), 0
    for line, record in records:
        fields = Fields(f"{file}, line {line}", record)
        row = latencies(fields, LATENCIES, "{statistic}_{name}", factor)
        isl, osl = fields.number("isl"), fields.number("osl")
        if not (isl > 0 and osl > 0):
            raise InputError(f"{fields.where}: isl and osl are {isl:g} and {osl:g}; they must be > 0 tokens.")
        split = record.get("disagg") is True or record.get("disagg") == "true"
        out, into = fields.number("output_tput_per_gpu"), fields.number("input_tput_per_gpu")
        prefill, decode = (fields.number(f"num_{pool}_gpu") if split else math.nan for pool in ("prefill", "decode"))
        # Requests are drawn below the nominal lengths: the time of a request tells how many tokens it really had.
        real = 1.0 + (row.get("e2el", math.nan) - row.get("ttft", math.nan)) / row.get("tpot", math.nan)
        if 0.5 * osl <= real <= 1.1 * osl:
            isl, osl = isl * real / osl, real
        else:
            nominal += 1
        row |= {"isl": isl, "osl": osl, "concurrency": fields.number("conc")}
        if split:
            row |= {"prefill_gpus": prefill, "decode_gpus": decode, "prefill_rate": into, "decode_rate": out}
            row |= {"output_rate": out * decode, "input_rate": into * prefill, "served_rate": out * decode / osl}
        elif "tpot" in row:
            row["batch"] = out * row["tpot"]  # Little, over the GPUs that do both
        consistent(fields.where, row)
        rows.append((line, row))
        kinds.add("disaggregated" if split else "aggregated")
        models.add(fields.text("model"))
    if nominal:
        notes.append(f"lengths of {nominal:,} points are nominal: their latencies do not give the mean output length")
    facts = {"topology": kinds.pop()} if len(kinds) == 1 else {}
    if len(models) == 1 and (model := models.pop()):
        facts["model"] = model
    return Measurements.from_rows(file, INFERENCEX, "runs", rows, facts=facts, notes=tuple(notes))


def arrays_of(file: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file: numbers and text only, no pickle, bounded in size before anything is inflated."""
    data = open_bytes(file, limit=MOST_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if len(members) > MOST_ARRAYS or size > MOST_BYTES:
                raise InputError(
                    f"{file} holds {len(members)} arrays of {size:,} bytes in all; a profile has at most "
                    f"{MOST_ARRAYS} of {MOST_BYTES:,} bytes."
                )
            return {m.filename.removesuffix(".npy"): _array(file, m.filename, archive.read(m)) for m in members}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise InputError(f"{file} is damaged npz data ({short(str(error))}); fetch it again.") from None


def _array(file: str, name: str, raw: bytes) -> np.ndarray:
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(stream)
    except (ValueError, KeyError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise InputError(f"{file}: {short(name)} is no NumPy array ({short(str(error))}).") from None
    if dtype.hasobject:
        raise InputError(f"{file}: {short(name)} holds Python objects, which are never unpickled; save numbers.")
    if dtype.kind not in "iufbU" or dtype.itemsize == 0:
        raise InputError(f"{file}: {short(name)} holds {short(str(dtype))}; it must hold numbers or text.")
    rest = raw[stream.tell() :]
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(rest):
        raise InputError(f"{file}: {short(name)} of shape {shape} and {dtype} does not fit its {len(rest):,} bytes.")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")


def is_profile(arrays: dict[str, np.ndarray]) -> bool:
    return arrays.keys() >= set(PREFILL) or arrays.keys() >= set(DECODE)


def read_profile(file: str, arrays: dict[str, np.ndarray], time_unit: str | None) -> Measurements:
    """The rows of a profile, each of one idle engine: prefill time by input length, or step time by batch and context.

    The times are ms. The batch is kv_usage * max_kv_tokens / context. The published throughput is not used: some files
    divide it by the GPUs of the node instead of those of the worker, and the times say the same.
    """
    factor = SECONDS[time_unit or "ms"]
    notes = ["times were read as seconds, as stated; the format writes milliseconds"] if time_unit == "s" else []
    prefill = arrays.keys() >= set(PREFILL)
    grid = {name: _grid(file, name, arrays[name]) for name in (PREFILL if prefill else DECODE)}
    shape = grid[PREFILL[0] if prefill else "z_itl"].shape
    tp = _grid(file, "tp", arrays["tp"]) if "tp" in arrays else None
    if tp is None:
        gpus, how = _gpus(file, arrays, grid, prefill, factor)
        tp = np.full((shape[0], 1), gpus)
        notes.append(how)
    try:
        grid = {name: np.broadcast_to(values, shape) for name, values in grid.items()}
        tp = np.broadcast_to(tp, shape)
    except ValueError:
        raise InputError(f"{file}: the arrays have shapes {[v.shape for v in grid.values()]}, which differ.") from None
    rows = []
    for index in range(math.prod(shape)):
        at = np.unravel_index(index, shape)
        cell = {name: float(values[at]) for name, values in grid.items()}
        if any(not (math.isfinite(v) and v > 0) for v in cell.values()) or not tp[at] >= 1:
            raise InputError(f"{file}: entry {index} is {cell} at tp {tp[at]:g}; every number must be > 0 and finite.")
        gpus = float(tp[at])
        if prefill:
            time, isl = cell["prefill_ttft"] * factor, cell["prefill_isl"]
            row = {"isl": isl, "isl_computed": isl, "ttft": time, "prefill_time": time}
        else:
            running = cell["x_kv_usage"] * cell["max_kv_tokens"] / cell["y_context_length"]
            row = {"itl": cell["z_itl"] * factor, "running": running, "batch": running / gpus}
            row |= {"context": cell["y_context_length"], "kv_use": cell["x_kv_usage"], "decode_gpus": gpus}
        rows.append((index, {**row, "worker_gpus": gpus}))
    facts = {"topology": "disaggregated"}
    for name in ("model", "framework", "gpu_type"):
        if name in arrays and arrays[name].dtype.kind == "U" and arrays[name].size:
            facts[name] = str(arrays[name].ravel()[0])
    return Measurements.from_rows(file, DYNAMO, "profile", rows, facts=facts, notes=tuple(notes))


def _grid(file: str, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "iuf" or values.ndim not in (1, 2) or values.size == 0:
        raise InputError(f"{file}: {name} is {values.dtype} of shape {values.shape}; it must be numbers, one row each.")
    return np.atleast_2d(values).astype(np.float64)


def _gpus(
    file: str, arrays: dict[str, np.ndarray], grid: dict[str, np.ndarray], prefill: bool, factor: float
) -> tuple[float, str]:
    """GPUs of the worker where the file does not name them: what the published throughput per GPU was divided by."""
    name = "prefill_thpt_per_gpu" if prefill else "z_thpt_per_gpu"
    if name not in arrays:
        raise InputError(f"{file}: neither tp nor {name} says how many GPUs the worker has; add an array tp.")
    rate = _grid(file, name, arrays[name])
    if prefill:
        whole = grid["prefill_isl"] / (grid["prefill_ttft"] * factor)
    else:
        whole = grid["x_kv_usage"] * grid["max_kv_tokens"] / grid["y_context_length"] / (grid["z_itl"] * factor)
    if whole.shape != rate.shape or not (rate > 0).all():
        raise InputError(f"{file}: {name} must hold a rate > 0 for each entry.")
    # Long contexts publish less than batch / time (ramps are in it), so the smallest quotient is the divisor.
    gpus = max(1.0, float(np.rint((whole / rate).min())))
    return gpus, f"no tp is given: {gpus:g} GPUs per worker by the published throughput per GPU"
