"""Ray Serve: deployments with num_replicas or autoscaling_config, wherever they stand in a Serve configuration."""

from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.io._policy_kubernetes import pool_of
from fluidq.io._policy_node import Codec, Context, Node, Path, aliases, concrete, put
from fluidq.io._policy_values import NUMBER, WHOLE
from fluidq.policies.metrics import POOLS
from fluidq.policies.ray_serve import RayServe, RayServeTarget

NAME, LAW = "ray-serve", RayServe

_FIELDS: dict[str, Codec] = {
    "target_ongoing_requests": NUMBER,
    "min_replicas": WHOLE,
    "max_replicas": WHOLE,
    "upscaling_factor": NUMBER,
    "downscaling_factor": NUMBER,
    "metrics_interval_s": NUMBER,
    "look_back_period_s": NUMBER,
    "upscale_delay_s": NUMBER,
    "downscale_delay_s": NUMBER,
    "downscale_to_zero_delay_s": NUMBER,
}
_OLDER = {
    "target_num_ongoing_requests_per_replica": "target_ongoing_requests",
    "upscale_smoothing_factor": "upscaling_factor",
    "downscale_smoothing_factor": "downscaling_factor",
}
_CONFIG_OTHERS = ("initial_replicas", "aggregation_function", "policy", "smoothing_factor", "prometheus_metrics")
_DEPLOYMENT = ("name", "num_replicas", "autoscaling_config")
_OTHERS = """
    max_ongoing_requests max_queued_requests user_config graceful_shutdown_wait_loop_s graceful_shutdown_timeout_s
    health_check_period_s health_check_timeout_s ray_actor_options placement_group_bundles placement_group_strategy
    max_replicas_per_node logging_config request_router_config import_path route_prefix args runtime_env deployments
""".split()
_BARE = {"target_ongoing_requests", "upscale_delay_s", "downscale_delay_s", "look_back_period_s", "upscaling_factor"}


def detect(documents: list[Any]) -> bool:
    """A mapping somewhere in which replicas or their autoscaling are stated, or an autoscaling_config alone."""
    if len(documents) != 1 or not isinstance(documents[0], dict) or "kind" in documents[0]:
        return False
    return bool(_find(documents[0], (0,))) or bool(_BARE & documents[0].keys())


def _find(raw: Any, path: Path) -> list[Path]:
    """Where the deployments stand."""
    if isinstance(raw, list):
        return [p for i, each in enumerate(raw) for p in _find(each, (*path, i))]
    if not isinstance(raw, dict):
        return []
    if {"autoscaling_config", "num_replicas"} & raw.keys():
        return [path]
    return [p for key, each in raw.items() for p in _find(each, (*path, key))]


def _deployments(ctx: Context, documents: list[Any]) -> dict[str, Node]:
    """The deployment of each pool; those that are neither prefill nor decode are left to the report."""
    found = _find(documents[0], (0,))
    if not found:
        pool = pool_of(ctx, "the autoscaling_config", [])
        return {pool: Node(ctx, documents[0], (0,))}
    nodes = [(Node(ctx, _at(documents, path), path), _told(ctx, documents, path)) for path in found]
    out: dict[str, Node] = {}
    if ctx.pool is not None and len(nodes) > 1:
        raise refuse(
            "pool", ctx.pool, f"left out for a file of {len(nodes)} deployments: their names must tell the pools"
        )
    for node, names in nodes:
        what = f"deployment {node.raw.get('name')}" if node.raw.get("name") else f"the deployment at {node.where()}"
        told = any(("prefill" in text.lower()) != ("decode" in text.lower()) for _, text in names)
        if not told and ctx.pool is None and len(nodes) > 1:
            node.leave("", "no deployment of the prefill or decode pool, by its name")
            continue
        pool = pool_of(ctx, what, names)
        if pool in out:
            raise InputError(f"{node.where()}: a second deployment for the {pool} pool; each pool has one here.")
        out[pool] = node
    if not out:
        raise InputError("no deployment is named prefill or decode; name them, or give a file of one and pool=.")
    return out


def _at(documents: list[Any], path: Path) -> Any:
    raw: Any = documents
    for part in path:
        raw = raw[part]
    return raw


def _told(ctx: Context, documents: list[Any], path: Path) -> list[tuple[str, str]]:
    """Names from the deployment outwards: its own, and the keys that lead to it."""
    out = []
    for n in range(len(path), 0, -1):
        raw = _at(documents, path[:n])
        if isinstance(raw, dict) and isinstance(raw.get("name"), str):
            out.append(("name", raw["name"]))
            if n < len(path):  # of an application around it
                ctx.taken.add((*path[:n], "name"))
        if n > 1 and isinstance(path[n - 1], str):
            out.append(("key", path[n - 1]))
    return out


def read(ctx: Context, documents: list[Any]) -> RayServe:
    """The law of the deployments. Raises InputError."""
    return RayServe(**{pool: _target(node) for pool, node in _deployments(ctx, documents).items()})


def _target(node: Node) -> RayServeTarget:
    if not {"autoscaling_config", "num_replicas"} & node.raw.keys():
        return _config(node, 1.0)
    node.know(*_DEPLOYMENT, *_OTHERS)
    node.mark("name", "num_replicas")
    replicas, config = node.raw.get("num_replicas"), node.child("autoscaling_config")
    if replicas is None or replicas == "auto":
        if config is None and replicas is None:
            raise refuse(node.where("autoscaling_config"), None, "given, or num_replicas")
        most = 100.0 if replicas == "auto" else 1.0
        return _config(config, most) if config is not None else RayServeTarget.auto()
    if isinstance(replicas, str):
        raise refuse(node.where("num_replicas"), replicas, "'auto' or a whole number")
    count = WHOLE.read(replicas, node.where("num_replicas"))
    if config is not None:
        raise refuse(node.where("num_replicas"), count, "'auto' or left out beside autoscaling_config, as Ray requires")
    with node.at("num_replicas"):
        return RayServeTarget(min_replicas=count, max_replicas=count)


def _config(node: Node, most: float) -> RayServeTarget:
    node.know(*_CONFIG_OTHERS)
    older = aliases(node, _OLDER)
    names = {**older, **{name: name for name in _FIELDS}}
    given = node.take({**_FIELDS, **{old: _FIELDS[new] for old, new in older.items()}}, names)
    if node.raw.get("aggregation_function") == "mean":
        node.mark("aggregation_function")
    node.leave("aggregation_function", "only the mean over the look-back period is modelled")
    node.leave("policy", "a policy of one's own is code; it is not modelled")
    node.leave("initial_replicas", "the fleet states its first workers")
    given.setdefault("max_replicas", most)
    with node.at():
        return RayServeTarget(**given)


def write(ctx: Context, documents: list[Any], policy: RayServe) -> None:
    """Set what differs from the documents; a pool without a deployment gets one."""
    nodes = _deployments(ctx, documents) if documents else {}
    if not documents:
        documents.append({"applications": [{"name": "default", "deployments": []}]})
    for pool in POOLS:
        law = getattr(policy, pool)
        if law is None:
            continue
        if pool not in nodes:
            raw: dict[str, Any] = {"name": pool, "num_replicas": "auto", "autoscaling_config": {}}
            documents[0]["applications"][0]["deployments"].append(raw)
        else:
            raw = nodes[pool].raw
        _set(raw, law)


def _set(raw: dict[str, Any], law: RayServeTarget) -> None:
    replicas = raw.get("num_replicas")
    if isinstance(replicas, int):
        low, high = concrete(law.min_replicas), concrete(law.max_replicas)
        if low == high:
            if low != replicas:
                raw["num_replicas"] = WHOLE.write(low)
            return
        raw["num_replicas"], raw["autoscaling_config"] = "auto", {}
        replicas = "auto"
    bare = not {"autoscaling_config", "num_replicas"} & raw.keys()
    config = raw if bare else dict(raw.get("autoscaling_config") or {})
    names = {old: new for old, new in _OLDER.items() if config.get(old) is not None}
    table = {name: codec for name, codec in _FIELDS.items() if name not in names.values()}
    most = {"max_replicas": 100.0} if replicas == "auto" else {}
    put(config, {**table, **{old: _FIELDS[new] for old, new in names.items()}}, law, names, most)
    if not bare and config != (raw.get("autoscaling_config") or {}):
        raw["autoscaling_config"] = config
