"""A scenario file (TOML or YAML) to the objects of a run; every key is optional, a wrong one is named by its path."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluidq import units
from fluidq._errors import InputError, refuse, unknown
from fluidq._moves import apply_moves, read_moves
from fluidq.catalog import Figure
from fluidq.deployment import Deployment, mean_context
from fluidq.formulas import balance
from fluidq.io.traces import ReadReport, read_trace
from fluidq.objective import Objective
from fluidq.plant import PLACES, Plant
from fluidq.policies import Policy, Thresholds
from fluidq.scenario_keys import DEFAULTS as DEFAULTS
from fluidq.scenario_keys import MOVE_KINDS, MOVES
from fluidq.scenario_keys import SCHEMA as SCHEMA
from fluidq.simulate import Fleet
from fluidq.tune import Moves, Settings
from fluidq.workload import Workload, default_workload


@dataclass
class Case:
    """All that a run needs, and what was decided on the way (`notes`, for people)."""

    deployment: Deployment
    fleet: Fleet
    workload: Workload
    policy: Policy
    objective: Objective
    settings: Settings
    load_scale: float
    phi: float
    moves: Moves = field(default_factory=Moves)
    also: tuple[Workload, ...] = ()
    report: ReadReport | None = None
    notes: list[str] = field(default_factory=list)

    def workload_dict(self) -> dict[str, Any]:
        """The workload as it was read or generated, before scaling, and the scale."""
        w = self.workload
        out: dict[str, Any] = {
            "name": w.name,
            "requests": w.requests / self.load_scale,
            "duration_s": self.report.span if self.report else w.duration,
            "mean_isl": w.mean_isl,
            "mean_isl_computed": w.mean_isl_computed,
            "mean_osl": w.mean_osl,
            "load_scale": self.load_scale,
        }
        if self.report:
            out["format"], out["notes"] = self.report.format, list(self.report.notes)
            out["rows_kept"], out["rows_dropped"] = self.report.kept, self.report.dropped
            out["dropped"] = [{"line": line, "reason": reason} for line, reason in self.report.reasons]
            out["requests"] = self.report.kept
        return out


def read_scenario(path: str | None) -> dict[str, dict[str, Any]]:
    """The keys of a scenario file, checked, in SI: TOML, or YAML where the name ends in .yaml or .yml.

    Raises InputError naming file, key, value and remedy.
    """
    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        raw = _yaml(text, path) if path.lower().endswith((".yaml", ".yml")) else tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"scenario file {path!r} does not exist; give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"scenario file {path!r} cannot be read as UTF-8 text: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"scenario file {path!r} is not TOML: {error}.") from None
    checked = check_keys(raw, path)
    here = Path(path).parent  # a trace is named relative to the scenario that names it
    if "trace" in checked.get("workload", {}):
        checked["workload"]["trace"] = str(here / checked["workload"]["trace"])
    if "also" in checked.get("tune", {}):
        checked["tune"]["also"] = ",".join(str(here / name) for name in _names(checked["tune"]["also"]))
    return checked


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _yaml(text: str, path: str) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"scenario file {path!r} is not YAML: {error}.") from None
    if not isinstance(raw, dict):
        raise InputError(f"scenario file {path!r} holds no sections; `fluidq init` writes one to start from.")
    return raw


def check_keys(raw: dict[str, Any], path: str = "scenario") -> dict[str, dict[str, Any]]:
    """Every section and key known, every value of its kind, text with units to SI floats."""
    out: dict[str, dict[str, Any]] = {}
    for section, table in raw.items():
        if section not in SCHEMA and section != MOVES:
            raise InputError(f"{path}: {unknown('section', section, (*SCHEMA, MOVES))}")
        if not isinstance(table, dict):
            raise InputError(f"{path}: {refuse(section, table, f'a table [{section}]')}")
        if section == MOVES:
            try:
                read_moves(table, MOVE_KINDS)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            out[section] = dict(table)
            continue
        out[section] = {}
        for key, value in table.items():
            if key not in SCHEMA[section]:
                raise InputError(f"{path}: {unknown(f'key in [{section}]', key, SCHEMA[section])}")
            try:
                out[section][key] = _value(value, SCHEMA[section][key], f"{section}.{key}")
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
    return out


def _value(value: Any, kind: str | type, name: str) -> Any:
    if kind is str:
        if not isinstance(value, str):
            raise refuse(name, value, "text in quotes")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refuse(name, value, "a number, or text with a unit")
    if kind is int:
        if not isinstance(value, int):
            raise refuse(name, value, "a whole number")
        return value
    assert isinstance(kind, str)
    return units.parse(value, kind, name)


def build_case(
    overrides: dict[str, dict[str, Any]] | None = None, *, checked: bool = False, workload: Workload | None = None
) -> Case:
    """The case of the embedded default with `overrides` on top: sections and keys as in a scenario file.

    `workload` stands in for the trace or the embedded day.
    `checked` says that they come from `read_scenario`, all in SI; else they are checked here, and sizes need units.
    The workload is scaled so that its mean demand, rate * (t_P + t_D), is `workload.load_share` of the GPUs, unless
    `workload.load_scale` gives the factor. The batch is cut to what fits in HBM at the workload's mean context. The
    policy's ratio is D01's phi at the mean mix unless given.
    """
    over = (overrides or {}) if checked else check_keys(overrides or {})
    defaults = check_keys(DEFAULTS, "default")
    if {"model", "gpu", "prefill_efficiency"} & over.get("deployment", {}).keys():
        # The default's rate and worker sizes belong to its own model and GPU.
        for key in ("prefill_rate", "gpus_per_prefill_worker", "gpus_per_decode_worker"):
            defaults["deployment"].pop(key)
    conf = {section: {**defaults[section], **over.get(section, {})} for section in SCHEMA}
    notes: list[str] = []
    if not (conf["fleet"]["gpus"] >= 2 and conf["fleet"]["gpus"] == int(conf["fleet"]["gpus"])):
        raise refuse("fleet.gpus", conf["fleet"]["gpus"], "a whole number of GPUs >= 2")
    if not 0 < conf["fleet"]["interval"] <= 600:
        raise refuse("fleet.interval", conf["fleet"]["interval"], "a control interval of at most 600 s")

    work = conf["workload"]
    report = None
    load: Workload
    if workload is not None:
        load = workload.resampled(conf["fleet"]["interval"])
    elif "trace" in work:
        load, report = read_trace(work["trace"], conf["fleet"]["interval"])
    else:
        load = _named(
            "workload",
            default_workload,
            {
                "seed": work["seed"],
                "days": work["days"],
                "window": conf["fleet"]["interval"],
                "hit": work.get("hit", 0.0),
            },
        )

    deployment = _deployment(conf["deployment"])
    context = mean_context(load.mean_isl, load.mean_osl)
    room = deployment.most_sequences(context)
    if room < 1:
        deployment.check_memory(context)
    if room < deployment.batch:
        notes.append(
            f"batch cut from {deployment.batch:g} to {room} per GPU: "
            f"what fits in HBM at a mean context of {context:,.0f} tok"
        )
        deployment = _deployment({**conf["deployment"], "batch": room})
    t_step = deployment.t_step(deployment.batch, context)
    mix = {"B": deployment.batch, "r_P": deployment.r_P, "t_step": t_step, "osl": load.mean_osl}
    phi = float(balance.balance_ratio(isl=load.mean_isl_computed, **mix))
    if not 0 < phi < 1:
        raise refuse("workload", f"a balance ratio of {phi}", "one with input and output tokens: both pools must work")
    # One request per second needs 1 / X* GPUs, X* being D01's throughput of one GPU.
    gpu_seconds = 1.0 / float(balance.balanced_throughput(N=1.0, isl=load.mean_isl_computed, **mix))
    budget = float(conf["fleet"]["gpus"])
    scale = _scale(work, load, gpu_seconds, budget, notes)
    load = load.scaled(scale)
    also = []
    for name in _names(conf["tune"].pop("also", "")):
        other, _ = read_trace(name, conf["fleet"]["interval"])
        also.append(other.scaled(_scale(work, other, gpu_seconds, budget, notes)))

    plant = _plant(deployment, conf["fleet"])
    pair = deployment.gpus_per_prefill_worker + deployment.gpus_per_decode_worker
    first = load.slice(0.0, min(600.0, load.duration))
    initial = conf["fleet"].get("initial_gpus")
    if initial is None:
        # Enough for the first ten minutes at the middle of the default band, in whole pairs of workers.
        need = first.requests / first.duration * gpu_seconds / 0.7
        floor = pair * conf["fleet"]["min_workers"]
        initial = min(max(math.ceil(need / pair) * pair, floor), budget)
    if initial != int(initial):
        raise refuse("fleet.initial_gpus", initial, "a whole number of GPUs")
    limits = {key: conf["fleet"][key] for key in ("cold_start", "interval", "min_workers", "substeps")}
    limits |= {"stages": conf["fleet"]["cold_start_stages"], "spread": conf["fleet"]["replica_spread"]}
    limits |= {"switch_delay": conf["fleet"].get("switch_delay"), "initial_ratio": phi}
    limits |= {"plant": plant, "budget": budget, "initial_gpus": float(initial), "request_gpu_seconds": gpu_seconds}
    fleet = _named("fleet", Fleet.make, limits)
    objective = _named("objective", Objective, conf["objective"])
    chosen = conf["policy"].pop("law", "thresholds")
    if chosen == "thresholds":
        policy = _named("policy", Thresholds, {"ratio": phi, "step": float(pair), **conf["policy"]})
    elif conf["policy"]:
        wanted = f"left out: it is the thresholds', and the law is {chosen!r}"
        raise refuse(f"policy.{min(conf['policy'])}", "given", wanted)
    else:
        policy = _named("policy.law", named_policy, {"name": chosen, "fleet": fleet, "objective": objective})
    moves = Moves()
    if over.get(MOVES):
        policy, fleet, moves = apply_moves(read_moves(over[MOVES], MOVE_KINDS), policy, fleet)
    return Case(
        deployment=deployment,
        fleet=fleet,
        workload=load,
        policy=policy,
        objective=objective,
        settings=_named("tune", Settings, conf["tune"]),
        load_scale=scale,
        phi=phi,
        moves=moves,
        also=tuple(also),
        report=report,
        notes=notes,
    )


def named_policy(name: str, fleet: Fleet, objective: Objective, pool: str | None = None) -> Any:
    """The law of that name, or of a product's file (a name with a dot or a slash, or of a file that exists)."""
    from fluidq.laws import LAWS, law

    if name in LAWS or not ("." in name or "/" in name or Path(name).is_file()):
        return law(name, fleet, objective)
    from fluidq.io.policies import read_policy

    return read_policy(name, fleet=fleet, pool=pool).policy


def _deployment(conf: dict[str, Any]) -> Deployment:
    if "prefill_rate" in conf and "prefill_efficiency" in conf:
        raise refuse(
            "deployment.prefill_efficiency", conf["prefill_efficiency"], "left out where prefill_rate is given"
        )
    names = {"prefill_rate": "r_P", "kv_per_token": "kv_bytes_per_token"}
    given = {names.get(key, key): value for key, value in conf.items()}
    # Measured step times (`fluidq calibrate`) take the place of the catalogue's; a term left out keeps its figure.
    steps = {key: given.pop(key) for key in ("t_step_a", "t_step_b", "t_step_c") if key in given}
    preset = Deployment.preset(given.pop("model"), given.pop("gpu"), **given)
    if not steps:
        return preset
    step = Figure(steps.get("t_step_a", preset.t_step_a), "as given", "the scenario")
    return replace(preset, **steps, sources={**preset.sources, "t_step": step})


def _plant(d: Deployment, fleet: dict[str, Any]) -> Plant:
    if fleet["overflow"] not in ("back-pressure", "loss"):
        raise refuse("fleet.overflow", fleet["overflow"], "'back-pressure' or 'loss'")
    if fleet["buffer_place"] not in PLACES:
        raise InputError(f"fleet.buffer_place: {unknown('place', fleet['buffer_place'], PLACES)}")
    return Plant(
        r_P=d.r_P,
        batch=float(d.batch),
        t_step_a=d.t_step_a,
        t_step_b=d.t_step_b,
        t_step_c=d.t_step_c,
        kappa=d.kappa_store,
        capacity=fleet["buffer"],
        capacity_per_gpu=fleet["buffer_per_gpu"],
        nic_prefill=d.nic,
        nic_decode=d.nic,
        fabric=d.fabric,
        prefill_worker=float(d.gpus_per_prefill_worker),
        decode_worker=float(d.gpus_per_decode_worker),
        kv_capacity=d.free_hbm() / d.kappa_store,
        place=fleet["buffer_place"],
        back_pressure=fleet["overflow"] == "back-pressure",
    )


def _scale(work: dict[str, Any], workload: Workload, gpu_seconds: float, budget: float, notes: list[str]) -> float:
    if "load_scale" in work:
        if not work["load_scale"] > 0:
            raise refuse("workload.load_scale", work["load_scale"], "> 0")
        return float(work["load_scale"])
    if not 0 < work["load_share"] <= 1:
        raise refuse("workload.load_share", work["load_share"], "a share of the GPUs in (0, 1]")
    demand = workload.requests / workload.duration * gpu_seconds
    scale = work["load_share"] * budget / demand
    notes.append(
        f"load scaled by {scale:.4g}: the workload alone needs {demand:.3g} GPUs on average; scaled, "
        f"{work['load_share']:.0%} of {budget:g} (load_scale = 1 keeps it as it is)"
    )
    return scale


def _named(section: str, make: Callable[..., Any], values: dict[str, Any]) -> Any:
    try:
        return make(**values)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(section) else f"{section}.{text}") from None
