"""The keys of a scenario file: what each holds, in words and in kind; the embedded default; the schema for editors."""

from dataclasses import fields
from typing import Any, NamedTuple

from fluidq.estimators import NAMES as ESTIMATORS
from fluidq.objective import WAITS, Objective
from fluidq.policies import Thresholds
from fluidq.tune import RISKS, Settings


class Key(NamedTuple):
    """A key: its kind (a dimension for text with units, or the type of a plain value) and what it is, in one line."""

    kind: str | type
    words: str
    choices: tuple[str, ...] = ()


WORDS = {
    "deployment": "The model, the GPU, and the rates of its two pools.",
    "fleet": "GPUs, the buffer between the pools, and how workers come and go.",
    "workload": "What arrives.",
    "policy": "The law: where it starts, or what it stays at; all keys but `law` are the thresholds'.",
    "objective": "Limits and prices.",
    "tune": "How long and how wide to search.",
}

KEYS: dict[str, dict[str, Key]] = {
    "deployment": {
        "model": Key(str, "model of the catalogue"),
        "gpu": Key(str, "GPU of the catalogue"),
        "nic": Key("bytes/s", "link of one GPU, one direction"),
        "fabric": Key("bytes/s", "what the whole fabric carries; without it no limit"),
        "prefill_rate": Key("tokens/s", "computed prefill tokens per second and GPU"),
        "prefill_efficiency": Key("1", "share of peak compute instead of prefill_rate"),
        "kv_per_token": Key("bytes/token", "KV bytes stored and transferred per token"),
        "batch": Key("1", "decode sequences per GPU"),
        "t_step_a": Key("seconds", "decode step a + b B + c B context: a"),
        "t_step_b": Key("seconds", "b, per sequence"),
        "t_step_c": Key("seconds", "c, per sequence and token of context"),
        "gpus_per_prefill_worker": Key(int, "GPUs of one prefill worker"),
        "gpus_per_decode_worker": Key(int, "GPUs of one decode worker"),
    },
    "fleet": {
        "gpus": Key("gpus", "GPU budget, ready and starting"),
        "cold_start": Key("seconds", "from the decision to a ready worker, tau"),
        "interval": Key("seconds", "control interval"),
        "buffer": Key("bytes", "handoff buffer of the fleet, C"),
        "overflow": Key(str, "what a full buffer does", ("back-pressure", "loss")),
        "buffer_place": Key(str, "where the buffer lies", ("prefill", "decode", "host")),
        "buffer_per_gpu": Key("bytes", "what each ready GPU of the pool that holds the buffer adds to it"),
        "substeps": Key(int, "steps of the physics per control interval"),
        "cold_start_stages": Key(int, "0: every start takes exactly cold_start; k: Erlang-k around it"),
        "switch_delay": Key("seconds", "how long a worker needs to change its role; without it none does"),
        "replica_spread": Key("1", "half-range of a per-replica signal around its mean"),
        "initial_gpus": Key("gpus", "fleet size at the start; without it, enough for the first ten minutes"),
        "min_workers": Key(int, "least workers per pool"),
    },
    "workload": {
        "trace": Key(str, "a trace, relative to this file; without it, the embedded day"),
        "load_share": Key("1", "mean demand as a share of the GPUs; the load is scaled to it"),
        "load_scale": Key("1", "factor on the load instead of load_share"),
        "seed": Key(int, "of the embedded day"),
        "days": Key("1", "length of the embedded load"),
        "hit": Key("1", "share of the input tokens that prefill finds cached (embedded day)"),
    },
    "policy": {
        "law": Key(str, "a law of `fluidq compare`, or a product's file; without it, thresholds"),
        "prefill_up": Key("seconds", "grow when the queued prefill work per ready GPU is above"),
        "prefill_down": Key("seconds", "shrink when it is below, and decode_load too"),
        "decode_up": Key("1", "grow when sequences over batch slots are above"),
        "decode_down": Key("1", "shrink when they are below, and prefill_wait too"),
        "ratio": Key("1", "prefill share of the fleet; without it, phi at the mean mix"),
        "step": Key("gpus", "GPUs per move; without it, one worker of each pool"),
    },
    "objective": {
        "ttft": Key("seconds", "limit of the time to first token"),
        "tpot": Key("seconds", "limit of the time per output token"),
        "late_weight": Key("1", "price of a request over a limit, in GPU times of serving one"),
        "lost_weight": Key("1", "price of a lost request, likewise"),
        "stalled_weight": Key("1", "price of a GPU-hour of prefill held back by the full buffer"),
        "ttft_spread": Key("1", "logistic spread of ln TTFT over requests"),
        "tpot_spread": Key("1", "logistic spread of ln TPOT over requests"),
        "waiting": Key(str, "formula for the wait below capacity, added to TTFT", WAITS),
        "gpu_hour_weight": Key("1", "price of a GPU-hour; the cost's unit is that of this price"),
        "action_weight": Key("1", "price of one worker started or stopped, in GPU-hours"),
    },
    "tune": {
        "steps": Key(int, "gradient steps"),
        "starts": Key(int, "searches side by side"),
        "screen": Key(int, "points run on the hard law first, of which the best are the other starts"),
        "spread": Key("1", "standard deviation of the starts, in unconstrained coordinates"),
        "learning_rate": Key("1", "Adam's, at the start"),
        "width_start": Key("1", "width of the relaxed law at the start"),
        "width_end": Key("1", "and at the end"),
        "judge_every": Key(int, "steps between two judgements on the hard law"),
        "patience": Key(int, "judgements without a better hard cost that end the search early; 0: never"),
        "estimator": Key(str, "how the gradient is taken", ESTIMATORS),
        "samples": Key(int, "antithetic pairs of the smoothed estimator"),
        "sigma": Key("1", "their spread, in unconstrained coordinates"),
        "risk": Key(str, "what counts over workloads and draws", RISKS),
        "risk_share": Key("1", "share of the draws, the worst, that cvar averages"),
        "also": Key(str, "further traces that count as much as the workload, separated by commas"),
        "attainment": Key("1", "least SLO attainment; the search then lowers what is paid, subject to it"),
        "finish": Key(int, "generations of CMA-ES on the hard law at the end; 0: none"),
        "finish_sigma": Key("1", "their first spread, in unconstrained coordinates"),
        "realisations": Key(int, "further draws that choose among candidates"),
        "unseen": Key(int, "draws that only the verdict sees"),
        "seed": Key(int, "of the starts and draws"),
    },
}

# The one section whose keys are not fixed: parameters of the policy and of the fleet, by name.
MOVES = "parameters"
MOVES_WORDS = "What a search moves: every tunable parameter of the policy, unless this section says otherwise."
# Dimensions of parameters that have one.
MOVE_KINDS = {
    **{name: str(key.kind) for name, key in KEYS["policy"].items() if key.kind is not str},
    "fleet.buffer": "bytes",
    "fleet.buffer_per_gpu": "bytes",
    "fleet.initial_gpus": "gpus",
}

SCHEMA: dict[str, dict[str, str | type]] = {
    section: {name: key.kind for name, key in keys.items()} for section, keys in KEYS.items()
}

# The embedded default: GLM-5.2 on B200 at the modelled prefill rate (the article's 56,250 tok/s is 100 % of peak),
# a warm start of 88 s (theory: cold-start ladder), eight GPUs per worker.
DEFAULTS: dict[str, dict[str, Any]] = {
    "deployment": {
        "model": "GLM-5.2",
        "gpu": "B200",
        "nic": "400Gbps",
        "prefill_rate": "13114tok/s",
        "batch": 128,
        "gpus_per_prefill_worker": 8,
        "gpus_per_decode_worker": 8,
    },
    "fleet": {
        "gpus": 512,
        "cold_start": "88s",
        "interval": "15s",
        "buffer": "1TB",
        "overflow": "back-pressure",
        "buffer_place": "host",
        "buffer_per_gpu": "0B",
        "substeps": 1,
        "cold_start_stages": 0,
        "replica_spread": 0,
        "min_workers": 1,
    },
    "workload": {"load_share": 0.25, "seed": 0, "days": 1},
    "policy": {},
    "objective": {},
    "tune": {},
}

# An example of each dimension, as one types it.
_EXAMPLES = {
    "bytes/s": "400Gbps",
    "tokens/s": "13114tok/s",
    "bytes/token": "47.7kB",
    "bytes": "150GB",
    "seconds": "88s",
    "gpus": 8,
    "1": 0.5,
    "t_step_a": "20ms",
    "t_step_b": "0.1ms",
    "t_step_c": "8ns",
}


def template() -> str:
    """A commented scenario file: the embedded default as values, everything else as a comment with its meaning."""
    lines = ["# A fluidq scenario. Every key is optional; text carries units, bare numbers are SI.", ""]
    for section, keys in KEYS.items():
        lines += [f"# {WORDS[section]}", f"[{section}]"]
        built_in = _built_in(section)
        for name, key in keys.items():
            words = key.words + (f" ({', '.join(key.choices)})" if key.choices else "")
            if name in DEFAULTS[section]:
                lines.append(f"{name} = {_toml(DEFAULTS[section][name])}  # {words}")
            elif built_in.get(name) is not None and section != "policy":
                lines.append(f"# {name} = {_toml(built_in[name])}  # {words}")
            else:
                example = "trace.csv" if key.kind is str else 1 if key.kind is int else _example(name, key)
                value = built_in.get(name)
                lines.append(f"# {name} = {_toml(example if value is None else value)}  # {words}")
        lines.append("")
    lines += [f"# {MOVES_WORDS}", f"[{MOVES}]"]
    lines += ['# ratio = "fixed"', '# decode_up = "0.7 .. 1.2"  # within this range', "# decode_down = 0.6  # set"]
    lines += ['# others = "fixed"  # only what is named as free or bounded moves']
    lines += ['# "fleet.initial_gpus" = "free"', ""]
    return "\n".join(lines)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a scenario, for editors; its descriptions are the words above."""
    sections = {}
    for section, keys in KEYS.items():
        properties = {name: {**_json_kind(key), "description": key.words} for name, key in keys.items()}
        for name, value in DEFAULTS[section].items():
            properties[name]["default"] = value
        sections[section] = {
            "type": "object",
            "description": WORDS[section],
            "properties": properties,
            "additionalProperties": False,
        }
    sections[MOVES] = {
        "type": "object",
        "description": MOVES_WORDS,
        "additionalProperties": {"type": ["number", "string"], "examples": ["free", "fixed", "0.7 .. 1.2", 0.6]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fluidq scenario",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def _example(name: str, key: Key) -> Any:
    return _EXAMPLES.get(name, _EXAMPLES[str(key.kind)])


def _json_kind(key: Key) -> dict[str, Any]:
    if key.choices:
        return {"enum": list(key.choices)}
    if key.kind is str:
        return {"type": "string"}
    if key.kind is int:
        return {"type": "integer"}
    return {"type": ["number", "string"], "examples": [_example("", key)]}


def _built_in(section: str) -> dict[str, Any]:
    """Defaults that the objects themselves carry."""
    objects = {"objective": Objective(), "tune": Settings(), "policy": Thresholds()}
    if section not in objects:
        return {}
    return {f.name: getattr(objects[section], f.name) for f in fields(objects[section]) if f.name in KEYS[section]}


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
