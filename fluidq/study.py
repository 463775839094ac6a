"""Sweeps over policies, workloads and hardware: every run of a design, on every device and host, into Parquet.

    study = fluidq.study(vary={"policy.decode_up": "0.7:1.3:7", "fleet.cold_start": "30s,88s,300s"}, out="days.parquet")
    study.table                    # one row per run: parameters by name, parts of the cost, SLO attainment
    fluidq.study.read_sweep("days.parquet")

Rows go in blocks of a fixed width through one program per static structure, so that devices, processes, interruptions
and the order of work change no bit of a row. A chunk is written whole or not at all; a rerun computes what is missing.
"""

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from fluidq import _sweep_files as files
from fluidq import _sweep_hosts as hosts
from fluidq._callable import make_callable
from fluidq._errors import refuse
from fluidq._sweep_axes import Given, read_axes
from fluidq._sweep_design import Design, fingerprint, named
from fluidq._sweep_files import read_sweep as read_sweep
from fluidq._sweep_plan import Group, plan
from fluidq._sweep_run import Runner, width
from fluidq.laws import LAWS, law
from fluidq.policies.base import Policy
from fluidq.scenario import build_case, check_keys, read_scenario

if TYPE_CHECKING:
    import polars

# Rows per part file: about a second of work on two cores.
CHUNK = 4096

# Tables up to this many rows are part of the JSON.
FEW = 1000


@dataclass(frozen=True)
class Study:
    """A finished sweep.

    `table` one row per run: `row`, `policy`, the parameters by name in SI, `cost` and its parts [GPU-hours over the
    workload], `slo_attainment`, `actions` and the rest of `fluidq.compare`'s columns. `units` of the parameters;
    `design` the fingerprint; `programs` how many the design needs, `compiled` how many this call compiled;
    `chunks` how many there are; `resumed` how many of this process's share were there before; `policy_days` that this
    process simulated in `seconds` (compilation included); `notes` for people.
    """

    table: "polars.DataFrame"
    units: dict[str, str]
    policies: tuple[str, ...]
    design: str
    programs: int
    compiled: int
    chunks: int
    resumed: int
    policy_days: float
    seconds: float
    process: int
    processes: int
    folder: str | None
    notes: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What was varied, as named by the user."""
        return tuple(self.units)

    def best(self) -> "polars.DataFrame":
        """The cheapest run of each policy, cheapest first."""
        return self.table.sort("cost", nulls_last=True).unique("policy", keep="first", maintain_order=True)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the whole table where it is short, else where it lies."""
        out: dict[str, Any] = {
            "unit": "GPU-hours over the workload",
            "runs": len(self.table),
            "policies": list(self.policies),
            "parameters": dict(self.units),
            "design": self.design,
            "programs": self.programs,
            "compiled": self.compiled,
            "chunks": {"total": self.chunks, "there_before": self.resumed},
            "policy_days": self.policy_days,
            "seconds": self.seconds,
            "processes": self.processes,
            "folder": self.folder,
            "best": _plain(self.best()),
            "notes": list(self.notes),
        }
        if len(self.table) <= FEW:
            out["table"] = _plain(self.table)
        return out

    def __str__(self) -> str:
        import polars as pl

        columns = ["policy", *self.parameters, "cost", "gpu_hours", "slo_loss", "slo_attainment", "actions"]
        shape = pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_rows=20, tbl_cols=-1)
        with shape, pl.Config(tbl_formatting="ASCII_MARKDOWN", tbl_width_chars=200):
            table = str(self.best().select(columns))
        rate = f", {self.policy_days / self.seconds:,.0f} policy-days/s" if self.policy_days >= self.seconds else ""
        lines = [
            f"{len(self.table):,} runs, {self.programs} programs, {self.compiled} compiled now, "
            f"{self.seconds:.1f} s with compilation{rate}.",
            "The cheapest run of each policy [GPU-hours over the workload, parameters in SI]:",
            table,
            *self.notes,
        ]
        return "\n".join([*lines, f"Table: {self.folder}"] if self.folder else lines)


class _Chunk(NamedTuple):
    group: Group
    start: int
    stop: int


def study(
    scenario: str | Mapping[str, Mapping[str, Any]] | None = None,
    vary: Mapping[str, Given] | Iterable[str] = (),
    *,
    policies: Sequence[str] | str = ("thresholds",),
    random: int | None = None,
    method: str = "random",
    seed: int = 0,
    out: str | Path | None = None,
    block: int | None = None,
    chunk: int = CHUNK,
    progress: bool = True,
    checked: bool = False,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> Study:
    """Every run of a design, the law in its hard form.

    Arguments:
        scenario: a file, or overrides of the embedded default as in one (`checked`: all in SI already).
        vary: KEY to LOW:HIGH:COUNT, LOW:HIGH (random designs), with :log at the end, or VALUE,VALUE; a mapping, or
            texts KEY=WHAT. KEY is a scenario key (`fleet.cold_start`, `workload.seed`, `workload.trace`), a parameter
            that all policies have (`policy.decode_up`) or one of one law (`hpa.prefill.target`).
        policies: names of `fluidq.laws.LAWS`; each runs at every point.
        random: this many draws instead of every combination, by `method` ("random", "sobol", "latin") and `seed`; a
            range without a count is drawn from evenly, or evenly in its logarithm; values are chosen among.
        out: a folder of part files and a manifest; what is there already is not computed again. None: in memory only.
        block: runs per vectorised call (default: by backend). chunk: runs per part file, rounded up to whole blocks.
        progress: a bar, on a terminal.
        coordinator, processes, process: of `jax.distributed`, for the same call on several hosts that share `out`.

    Returns a `Study`; every process returns the same table. Raises InputError for bad names, values and ranges, for a
    folder of another design, and where a law refuses the fleet.
    """
    hosts.join(coordinator, processes, process)
    me, all_of_us = hosts.place()
    if all_of_us > 1 and out is None:
        raise refuse("--out", out, "a folder that all processes share")
    began = time.perf_counter()
    design = _design(scenario, vary, policies, random, method, seed, checked)
    block = width() if block is None else block
    if block < 1:
        raise refuse("--block", block, "at least one run")
    if chunk < 1:
        raise refuse("--chunk", chunk, "at least one run")
    chunk = -(-chunk // block) * block
    groups = plan(design, progress)
    chunks = [_Chunk(g, at, min(at + chunk, len(g.rows))) for g in groups for at in range(0, len(g.rows), chunk)]

    manifest = _manifest(design, block, chunk, len(chunks))
    folder = None if out is None else Path(out)
    if folder is not None:
        files.open_folder(folder, manifest, write=me == 0)
        hosts.wait("fluidq sweep: folder")
    mark, notes = manifest["fingerprint"], []
    # A contiguous share: most chunks of a program stay in one process.
    mine = range(me * len(chunks) // all_of_us, (me + 1) * len(chunks) // all_of_us)
    tables: dict[int, polars.DataFrame] = {}
    bar = tqdm(
        total=sum(chunks[i].stop - chunks[i].start for i in mine), desc="sweep", disable=None if progress else True
    )
    runner = Runner(block, bar.update)
    resumed, days = 0, 0.0
    with bar:
        for number in mine:
            part = None if folder is None else files.read_part(folder, number, mark)
            if isinstance(part, str):
                notes.append(f"{files.part_name(number)} was damaged ({part}) and was computed again.")
            elif part is not None:
                resumed += 1
                bar.update(len(part))
                continue
            group, start, stop = chunks[number]
            table = _table(design, group, start, stop, runner.run(group, start, stop))
            days += group.days * (stop - start)
            if folder is None:
                tables[number] = table
            else:
                files.write_part(folder, number, mark, table)
    if folder is not None:
        hosts.wait("fluidq sweep: chunks")
    table = _joined(tables) if folder is None else files.read_sweep(folder)
    broken = int((~np.isfinite(table["cost"].to_numpy())).sum())
    if broken:
        notes.append(f"{broken} of {len(table)} runs have no finite cost.")
    return Study(
        table=table,
        units={axis.key: axis.unit for axis in design.axes},
        policies=design.policies,
        design=mark,
        programs=len(groups),
        compiled=runner.programs,
        chunks=len(chunks),
        resumed=resumed,
        policy_days=days,
        seconds=time.perf_counter() - began,
        process=me,
        processes=all_of_us,
        folder=None if out is None else str(out),
        notes=tuple(notes),
    )


def names(
    scenario: str | Mapping[str, Mapping[str, Any]] | None = None,
    policies: Sequence[str] | str = ("thresholds",),
    *,
    checked: bool = False,
) -> dict[str, str]:
    """What can be varied with these policies: the name, and the kind of its values."""
    from fluidq._sweep_axes import parameters

    over = _overrides(scenario, checked)
    kinds = parameters(_laws(over, named(policies, LAWS)))
    plain = {str: "text", int: "whole number", "1": "number"}
    return {name: plain.get(kind, str(kind)) for name, kind in sorted(kinds.items())}


def _design(
    scenario: Any, vary: Any, policies: Any, random: int | None, method: str, seed: int, checked: bool
) -> Design:
    over, chosen = _overrides(scenario, checked), named(policies, LAWS)
    design = Design(read_axes(vary, _laws(over, chosen)), chosen, over, random, method, seed)
    design.check()
    return design


def _overrides(scenario: Any, checked: bool) -> dict[str, dict[str, Any]]:
    if scenario is None or isinstance(scenario, str):
        return read_scenario(scenario)
    over = {section: dict(keys) for section, keys in scenario.items()}
    return over if checked else check_keys(over)


def _laws(over: dict[str, dict[str, Any]], policies: Sequence[str]) -> dict[str, Policy]:
    """The policies at the scenario's own point: they say which parameters there are."""
    case = build_case(over, checked=True)
    return {n: case.policy if n == "thresholds" else law(n, case.fleet, case.objective) for n in policies}


def _manifest(design: Design, block: int, chunk: int, chunks: int) -> dict[str, Any]:
    what = design.describe()
    made_by = {name: version(name) for name in ("fluidq", "jax", "jaxlib", "polars")}
    made_by |= {"backend": jax.default_backend(), "machine": platform.machine()}
    blocks = {"block": block, "chunk": chunk}
    return {
        "form": files.FORM,
        "design": what,
        "blocks": blocks,
        "made_by": made_by,
        "seed": what["seed"],
        "rows": design.rows,
        "chunks": chunks,
        "fingerprint": fingerprint({"form": files.FORM, "design": what, "blocks": blocks, "made_by": made_by}),
    }


def _table(design: Design, group: Group, start: int, stop: int, out: dict[str, np.ndarray]) -> "polars.DataFrame":
    import polars as pl

    series = [
        pl.Series("row", group.rows[start:stop], dtype=pl.Int64),
        pl.Series("policy", [group.policy] * (stop - start), dtype=pl.String),
    ]
    for axis in design.axes:
        text = axis.values is not None and isinstance(axis.values[0], str)
        kind = pl.String if text else pl.Float64
        values = group.points.get(axis.key)
        # A parameter of another law: this one has none such.
        series.append(
            pl.Series(axis.key, [None] * (stop - start) if values is None else list(values[start:stop]), dtype=kind)
        )
    return pl.DataFrame([*series, *(pl.Series(name, values, dtype=pl.Float64) for name, values in out.items())])


def _joined(tables: Mapping[int, "polars.DataFrame"]) -> "polars.DataFrame":
    import polars as pl

    return pl.concat(list(tables.values())).sort("row")


def _plain(table: "polars.DataFrame") -> list[dict[str, Any]]:
    """Rows as objects; what is not a number is null."""
    import polars as pl

    return table.with_columns(pl.selectors.float().fill_nan(None)).to_dicts()


make_callable(__name__)
