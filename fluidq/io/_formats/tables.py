"""Tables and profiles that are no load: what each kind is called, how it is recognised, what its cells must be."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fluidq.io._files import short
from fluidq.io._formats._rows import BadRow, Rows, bad
from fluidq.io._formats._table import NUMBER, body, number

MOST_VALUES = 50  # distinct texts that are remembered per column
SHARE = (0.0, 1.0)
COUNT = (0.0, 1e18)
INF = math.inf


@dataclass(frozen=True)
class Table:
    """A kind of table: the columns that give it away, and the least and most of cells that must be numbers.

    `load`, if any, is the column whose peak over its mean is shown: a load curve in units of its own; `span` names the
    columns of its start and end, where rows last differently long.
    """

    name: str
    columns: frozenset[str]
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    load: str = ""
    span: tuple[str, str] | None = None

    def __hash__(self) -> int:
        return hash(self.name)


def _table(name: str, columns: str, limits: str = "", shares: str = "", load: str = "", span: str = "") -> Table:
    within = {**dict.fromkeys(limits.split(), COUNT), **dict.fromkeys(shares.split(), SHARE)}
    ends = span.split()
    return Table(name, frozenset(columns.split()), within, load, (ends[0], ends[1]) if ends else None)


TABLES = (
    _table(
        "published deployments", "row_id evidence_class phi_measured",
        "isl_tok osl_tok concurrency_req gpus_per_prefill_worker n_prefill_workers gpus_per_decode_worker "
        "n_decode_workers n_P_gpu n_D_gpu r_P_tok_per_s_gpu decode_tok_per_s_gpu B_req_per_gpu t_step_s tok_per_step "
        "kv_bytes_per_tok nic_bytes_per_s_gpu request_rate_req_per_s",
        "testable cache_hit_frac phi_measured in_decode_frac phi_predicted",
    ),
    _table(
        "published sweeps", "sweep_id deployments_row_id metric measured",
        "concurrency_req isl_tok osl_tok n_prefill_workers n_decode_workers measured predicted", "phi",
    ),
    _table("models", "model attention n_layers kv_bytes_per_tok_bf16", "n_layers kv_bytes_per_tok_bf16 hidden n_heads"),
    _table("GPUs", "gpu hbm_bytes hbm_bytes_per_s nic_bits_per_s_per_gpu", "hbm_bytes hbm_bytes_per_s"),
    _table("fabrics", "fabric_id nominal_bytes_per_s", "nominal_bytes_per_s measured_bytes_per_s", "efficiency"),
    _table(
        "AIConfigurator measured points", "id silicon_ttft_ms silicon_tpot_ms isl osl",
        "silicon_ttft_ms silicon_tpot_ms isl osl prefill_gpus decode_gpus",
    ),
    _table(
        "AIConfigurator time grid", "role batch_per_rank isl_or_context latency_ms",
        "batch_per_rank isl_or_context latency_ms memory_gb", "oom",
    ),
    _table(
        "AIConfigurator picks", "prefill_workers decode_workers request_rate_per_replica",
        "isl osl prefill_workers decode_workers ttft_ms tpot_ms request_rate_per_replica",
    ),
    _table(
        "AIConfigurator systems", "system gpus_per_node hbm_bytes inter_node_bytes_per_s_per_gpu",
        "gpus_per_node hbm_bytes hbm_bytes_per_s inter_node_bytes_per_s_per_gpu",
    ),
    _table("KV bytes per token", "model bytes_per_token_16bit bytes_per_token_8bit", "layers bytes_per_token_16bit"),
    _table(
        "Azure 2024 token curve", "minute input_tokens_per_min_mid output_tokens_per_min_mid",
        "minute input_tokens_per_min_mid output_tokens_per_min_mid", load="input_tokens_per_min_mid",
    ),
    _table(
        "DeepSeek node count", "start_hour end_hour nodes", "start_hour end_hour nodes", load="nodes",
        span="start_hour end_hour",
    ),
    _table(
        "DeepSeek hourly income", "start_hour income_usd share_of_day", "start_hour income_usd", "share_of_day",
        load="share_of_day",
    ),
    _table("published figures", "quantity value unit"),
    _table(
        "dstack ratio sweep", "prefill decode conc isl osl mean_ttft_ms completed",
        "prefill decode conc isl osl num_prompts duration completed total_output_tokens mean_ttft_ms mean_tpot_ms",
    ),
    _table(
        "Dynamo decode profile", "kv_usage context_length itl_ms max_kv_tokens",
        "context_length itl_ms max_kv_tokens", "kv_usage",
    ),
    _table("Dynamo prefill profile", "isl ttft_ms input_tok_s_per_gpu tp", "isl ttft_ms input_tok_s_per_gpu tp"),
    _table(
        "Mooncake transfer bandwidth", "nic_gbit_s block_kib write_gbyte_s read_gbyte_s",
        "nics nic_gbit_s line_rate_gbyte_s block_kib write_gbyte_s read_gbyte_s",
    ),
    _table(
        "Splitwise performance model", "prompt_size batch_size prompt_time token_time tensor_parallel",
        "prompt_size batch_size token_size prompt_time token_time e2e_time tensor_parallel",
    ),
    _table(
        "Vidur send/recv times", "time_stats.send_recv.mean size devices_per_node",
        "time_stats.send_recv.min time_stats.send_recv.mean time_stats.send_recv.max size",
    ),
)  # fmt: skip


def table_of(names: list[str]) -> Table | None:
    """The kind of table with these columns, or None."""
    return next((table for table in TABLES if table.columns <= set(names)), None)


@dataclass
class Column:
    """What one column holds: cells that are not empty, how many of them are numbers, their range, some of the texts."""

    filled: int = 0
    numbers: int = 0
    least: float = INF
    most: float = -INF
    texts: dict[str, None] = field(default_factory=dict)

    def take(self, cell: str) -> None:
        """Count one cell."""
        if not cell:
            return
        self.filled += 1
        if len(cell) < 60 and NUMBER.fullmatch(cell) and math.isfinite(value := float(cell)):
            self.numbers += 1
            self.least, self.most = min(self.least, value), max(self.most, value)
        elif len(self.texts) < MOST_VALUES:
            self.texts[cell] = None

    def show(self) -> str:
        """One line for people."""
        if not self.filled:
            return "empty"
        if self.numbers == self.filled:
            return f"{self.least:g}" if self.least == self.most else f"{self.least:g} to {self.most:g}"
        some = ", ".join(short(text, 30).strip("'") for text in list(self.texts)[:4])
        return some + (", ..." if len(self.texts) > 4 else "")


@dataclass
class Contents:
    """The columns of a table by name, and the peak of its load curve over the mean (None: it has none)."""

    columns: dict[str, Column]
    peak_to_mean: float | None


def read(rows: Rows, table: Table | None, header: list[str], blocks: Iterable[tuple[int, bytes]]) -> Contents:
    """Count and check the rows of a table; those that break a limit of its kind go to `rows` with the reason."""
    columns = [Column() for _ in header]
    limits = table.limits if table is not None else {}
    checked = [(at, name, *limits[name]) for at, name in enumerate(header) if name in limits]
    load: list[tuple[float, float]] = []
    for line, parts in body(header, blocks):
        try:
            if isinstance(parts, BadRow):
                raise parts
            for at, name, least, most in checked:
                number(name, parts[at], least, most)
            if table is not None and table.load:
                load.append(_load(table, header, parts))
        except BadRow as why:
            rows.drop(line, str(why))
            continue
        rows.line.append(line)
        for column, cell in zip(columns, parts, strict=True):
            column.take(cell)
    names = [name or f"column {at}" for at, name in enumerate(header, 1)]
    return Contents(dict(zip(names, columns, strict=True)), _peak(load))


def _load(table: Table, header: list[str], parts: list[str]) -> tuple[float, float]:
    """(load, how long it holds) of one row."""
    load, *ends = (
        number(name, parts[header.index(name)], 0.0, INF, blank=False) for name in (table.load, *(table.span or ()))
    )
    if not ends:
        return load, 1.0
    if not ends[1] > ends[0]:
        raise bad("the end of a stretch", ends[1], f"after its start, {ends[0]:g}")
    return load, ends[1] - ends[0]


def _peak(load: list[tuple[float, float]]) -> float | None:
    if not load:
        return None
    value, weight = np.array(load).T
    mean = float((value * weight).sum() / weight.sum())
    return float(value.max() / mean) if mean > 0 else None
