"""Reads a table of deployments: CSV, one published operating point per line, columns found by name."""

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fluidq._errors import InputError, refuse
from fluidq.units import Number

LARGEST_FILE = 64 * 2**20  # bytes
_TEXT = ("row_id", "evidence_class", "ratio_selection", "sibling_group", "spec_decode")
_FLAGS = ("testable", "r_P_counts_cached_tok")
_NUMBERS = (
    "isl_tok",
    "osl_tok",
    "cache_hit_frac",
    "slo_ttft_s",
    "concurrency_req",
    "gpus_per_prefill_worker",
    "n_prefill_workers",
    "gpus_per_decode_worker",
    "n_decode_workers",
    "n_P_gpu",
    "n_D_gpu",
    "r_P_tok_per_s_gpu",
    "decode_tok_per_s_gpu",
    "B_req_per_gpu",
    "t_step_s",
    "tok_per_step",
    "prefill_flow_tok_per_s_gpu",
    "request_rate_req_per_s",
)
# No length, count, rate or time lies outside of these.
_SMALLEST, _LARGEST = 1e-12, 1e15
_SHARES = ("cache_hit_frac",)
# Of these a row that has the number has a number above 0.
_ABOVE_ZERO = frozenset(_NUMBERS) - {
    *("isl_tok", "osl_tok", "cache_hit_frac", "request_rate_req_per_s", "prefill_flow_tok_per_s_gpu"),
    *("n_prefill_workers", "n_decode_workers", "n_P_gpu", "n_D_gpu"),
}


@dataclass(frozen=True)
class Row:
    """One operating point; numbers and texts are absent (None, "") where the file has none.

    `numbers` are in SI units under the file's own column names; `line` is where the row starts.
    """

    line: int
    texts: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.texts.get("row_id") or f"line {self.line}"

    def text(self, column: str) -> str:
        return self.texts.get(column, "")

    def get(self, column: str) -> float | None:
        return self.numbers.get(column)

    def workers(self, pool: str) -> float | None:
        """Workers of the pool, "prefill" or "decode": given, or GPUs over the GPUs of a worker."""
        given, size = self.get(f"n_{pool}_workers"), self.get(f"gpus_per_{pool}_worker")
        gpus = self.get({"prefill": "n_P_gpu", "decode": "n_D_gpu"}[pool])
        if given is None and gpus is not None and size is not None:
            return gpus / size
        return given

    def gpus(self, pool: str) -> float | None:
        """GPUs of the pool: given, or workers times the GPUs of a worker."""
        given = self.get({"prefill": "n_P_gpu", "decode": "n_D_gpu"}[pool])
        workers, size = self.get(f"n_{pool}_workers"), self.get(f"gpus_per_{pool}_worker")
        if given is None and workers is not None and size is not None:
            return workers * size
        return given

    @property
    def accept(self) -> float:
        """Output tokens per decode step and sequence; 1 where the file has none."""
        return self.numbers.get("tok_per_step", 1.0)

    @property
    def decode_rate(self) -> float | None:
        """Output tokens per second and decode GPU: given, or accept * B / t_step."""
        given, batch, step = self.get("decode_tok_per_s_gpu"), self.get("B_req_per_gpu"), self.get("t_step_s")
        return self.accept * batch / step if given is None and batch is not None and step is not None else given

    @property
    def tpot(self) -> float | None:
        """Time per output token of one sequence [s]: batch over decode rate (Little), or t_step / accept."""
        batch, rate, step = self.get("B_req_per_gpu"), self.decode_rate, self.get("t_step_s")
        if batch is not None and rate is not None:
            return batch / rate
        return None if step is None else step / self.accept

    @property
    def batch(self) -> float | None:
        """Sequences per decode GPU: given, or decode rate * time per output token."""
        given, rate, time = self.get("B_req_per_gpu"), self.decode_rate, self.tpot
        return rate * time if given is None and rate is not None and time is not None else given

    @property
    def uncached(self) -> float:
        """Share of the prompt that counts against r_P: 1 - hit, or 1 where r_P counts cached tokens too."""
        if self.get("r_P_counts_cached_tok") == 1:
            return 1.0
        return 1.0 - self.numbers.get("cache_hit_frac", 0.0)

    @property
    def computed(self) -> float | None:
        """Prompt tokens per request that count against r_P."""
        isl = self.get("isl_tok")
        return None if isl is None else isl * self.uncached


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a CSV file; columns that are not used here are ignored, and missing ones are missing values.

    Raises:
        InputError: no such file, not text, not CSV, no known column, a line with too many or too few cells, or a cell
            that is no number where one belongs; each names the file and the line.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise InputError(f"{file} has {size:,} bytes; a table of deployments has at most {LARGEST_FILE:,}.")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}); save it as a UTF-8 CSV file.") from None
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    rows: list[Row] = []
    header: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            line, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells, file, line)
            else:
                rows.append(_row(cells, header, file, line))
    except csv.Error as error:
        raise InputError(f"{file}, line {max(reader.line_num, 1)}: not CSV ({error}).") from None
    if header is None:
        raise InputError(f"{file} is empty; the first line must name the columns, such as isl_tok and osl_tok.")
    return rows


def _header(cells: list[str], file: Path, line: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    known = {*_TEXT, *_FLAGS, *_NUMBERS}
    if not known.intersection(names):
        raise InputError(f"{file}, line {line}: none of the columns is known; wanted are {', '.join(sorted(known))}.")
    twice = sorted({name for name in names if name in known and names.count(name) > 1})
    if twice:
        raise InputError(f"{file}, line {line}: column {twice[0]} is there twice; keep one.")
    return names


def _row(cells: list[str], header: list[str], file: Path, line: int) -> Row:
    if len(cells) != len(header):
        words = f"{len(cells)} cells where the header has {len(header)}"
        raise InputError(f"{file}, line {line}: {words}; is a comma missing or not quoted?")
    values = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    numbers = {}
    for name in (*_NUMBERS, *_FLAGS):
        if values.get(name):
            numbers[name] = _number(values[name], name, f"{file}, line {line}: {name}")
    return Row(line, {name: values.get(name, "") for name in _TEXT}, numbers)


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise refuse(where, text, "a number, or empty where there is none") from None
    _in_range(value, name, where)
    return value


def _in_range(value: Number, name: str, where: str) -> None:
    if name in _FLAGS:
        if value not in (0, 1):
            raise refuse(where, value, "0 or 1")
    elif name in _SHARES:
        if not 0 <= value <= 1:
            raise refuse(where, value, "a share from 0 to 1")
    elif not (_SMALLEST if name in _ABOVE_ZERO else 0.0) <= value <= _LARGEST:
        raise refuse(where, value, f"a number {'> 0' if name in _ABOVE_ZERO else '>= 0'}, at most {_LARGEST:g}")
