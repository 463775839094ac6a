"""NVIDIA Dynamo's PlannerConfig, YAML or JSON."""

from typing import Any

from fluidq._errors import refuse
from fluidq.io._policy_node import Codec, Context, Node, aliases, concrete, put
from fluidq.io._policy_values import FLAG, NUMBER, TEXT, WHOLE
from fluidq.policies.dynamo import DynamoPlanner

NAME, LAW = "dynamo", DynamoPlanner

_FIELDS: dict[str, Codec] = {
    "optimization_target": TEXT,
    "mode": TEXT,
    "enable_throughput_scaling": FLAG,
    "enable_load_scaling": FLAG,
    "ttft_ms": NUMBER,
    "itl_ms": NUMBER,
    "throughput_adjustment_interval_seconds": NUMBER,
    "load_adjustment_interval_seconds": NUMBER,
    "max_throughput_scaling_replicas": WHOLE,
    "max_gpu_budget": WHOLE,
    "min_endpoint": WHOLE,
    "prefill_min_endpoint": WHOLE,
    "decode_min_endpoint": WHOLE,
    "load_scaling_down_sensitivity": NUMBER,
    "load_predictor": TEXT,
    "load_predictor_log1p": FLAG,
    "kalman_q_level": NUMBER,
    "kalman_q_trend": NUMBER,
    "kalman_r": NUMBER,
    "kalman_min_points": WHOLE,
    "prefill_scale_up_queue_tokens": NUMBER,
    "prefill_scale_down_queue_tokens": NUMBER,
    "decode_scale_up_kv_rate": NUMBER,
    "decode_scale_down_kv_rate": NUMBER,
}
_OLDER = {  # names that the product takes too
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "throughput_adjustment_interval": "throughput_adjustment_interval_seconds",
    "load_adjustment_interval": "load_adjustment_interval_seconds",
}
_OTHERS = """
    backend environment namespace model_name served_model_name prefill_engine_num_gpu decode_engine_num_gpu
    min_gpu_budget load_min_observations max_num_fpm_samples fpm_sample_bucket_size prophet_window_size
    speculative_nextn pre_deployment_sweeping_mode throughput_metrics_source advisory tick_max_duration_seconds
    report_interval_hours report_output_dir metric_reporting_prometheus_port scheduling no_operation log_dir
    load_predictor_warmup_trace profile_results_dir global_planner_namespace live_dashboard_port control_api_port
""".split()
_DEFAULT_BUDGET = 8.0  # the product's own, one node; the law's None is the fleet's budget


def detect(documents: list[Any]) -> bool:
    """One mapping with at least one field that only the planner has, and no kind."""
    if len(documents) != 1 or not isinstance(documents[0], dict) or "kind" in documents[0]:
        return False
    own = {*_FIELDS, "ttft", "itl", "min_gpu_budget", "prefill_engine_num_gpu", "decode_engine_num_gpu"}
    return bool((own - {"mode"}) & documents[0].keys())


def read(ctx: Context, documents: list[Any]) -> DynamoPlanner:
    """The planner of the configuration. Raises InputError."""
    node = Node(ctx, documents[0], (0,))
    node.know(*_OTHERS)
    older = aliases(node, _OLDER)
    names = {**older, **{name: name for name in _FIELDS}}
    given = node.take({**_FIELDS, **{old: _FIELDS[new] for old, new in older.items()}}, names)
    if "kalman_min_points" in given:
        given["kalman_min_points"] = int(given["kalman_min_points"])
    if "max_gpu_budget" not in given:
        given["max_gpu_budget"] = _DEFAULT_BUDGET
        ctx.notes.append("max_gpu_budget is not given: the planner's own default of 8 GPUs holds")
    if node.has("min_gpu_budget"):
        if WHOLE.read(node.raw["min_gpu_budget"], "min_gpu_budget") == -1:
            node.mark("min_gpu_budget")
        node.leave("min_gpu_budget", "a floor on GPUs is not modelled; min_endpoint is")
    if node.raw.get("advisory") is False:
        node.mark("advisory")
    node.leave("advisory", "the planner would only recommend; here it acts")
    policy = DynamoPlanner(**given)
    _check_footprint(node, policy)
    return policy


def _check_footprint(node: Node, policy: DynamoPlanner) -> None:
    """A budget below the least workers of both pools, by the file's GPUs per engine or the fleet's."""
    fleet = node.ctx.fleet
    gpus = []
    for i, pool in enumerate(("prefill", "decode")):
        name = f"{pool}_engine_num_gpu"
        stated = WHOLE.read(node.raw[name], name) if node.has(name) else None
        own = float(fleet.per_worker[i]) if fleet is not None else None
        if stated is not None:
            node.leave(
                name,
                "the fleet states its GPUs per worker"
                if own == stated
                else f"the fleet has {own or 'its own'} per worker",
            )
            if own is not None and own == stated:
                node.mark(name)
        gpus.append(own if own is not None else stated)
    budget = concrete(policy.max_gpu_budget)
    if None in gpus or budget is None or budget < 0:
        return
    least = [policy.min_endpoint if n is None else n for n in (policy.prefill_min_endpoint, policy.decode_min_endpoint)]
    floor = sum(concrete(n) * g for n, g in zip(least, gpus, strict=True))
    if budget < floor:
        raise refuse(
            "max_gpu_budget",
            budget,
            f"at least {floor:g}, the GPUs of the least workers of each pool, or -1 for no limit",
        )


def write(ctx: Context, documents: list[Any], policy: DynamoPlanner) -> None:
    """Set what differs from the document or from the planner's defaults."""
    if not documents:
        documents.append({"optimization_target": policy.optimization_target, "mode": policy.mode})
    raw = documents[0]
    names = {old: new for old, new in _OLDER.items() if raw.get(old) is not None}
    table = {name: codec for name, codec in _FIELDS.items() if name not in names.values() and name != "max_gpu_budget"}
    put(raw, {**table, **{old: _FIELDS[new] for old, new in names.items()}}, policy, names)
    budget = concrete(policy.max_gpu_budget)
    old = raw.get("max_gpu_budget")
    if (-1.0 if budget is None else budget) != (_DEFAULT_BUDGET if old is None else float(old)):
        raw["max_gpu_budget"] = -1 if budget is None else WHOLE.write(budget)
