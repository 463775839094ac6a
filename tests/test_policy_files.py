"""Policy files of every dialect: read, written back unchanged, changed in place, and refused where they are wrong."""

import copy
import json
import re

import equinox as eqx
import jax.numpy as jnp
import pytest
import yaml

from fluidq import InputError
from fluidq.io._policy_metrics import query_of, resolve, table
from fluidq.io._policy_values import duration, quantity, write_quantity
from fluidq.io.policies import DIALECTS, read_policy, write_policy
from fluidq.laws import LAWS, law
from fluidq.policies.aibrix import AIBrixAPA, AIBrixKPA
from fluidq.policies.balance import BalanceTracking
from fluidq.policies.dynamo import DynamoPlanner
from fluidq.policies.hpa import HPA, HPAScalingRules, HPATarget
from fluidq.policies.metrics import METRICS
from fluidq.policies.wva import WVASaturationV1, WVATokenCapacityV2
from tests.helpers import small_fleet, small_plant

DYNAMO = """\
# a planner of one node
mode: disagg
backend: vllm
optimization_target: load
load_adjustment_interval_seconds: 10
max_gpu_budget: 32
prefill_engine_num_gpu: 1
decode_engine_num_gpu: 1
prefill_scale_up_queue_tokens: 10000
prefill_scale_down_queue_tokens: 2000
decode_scale_up_kv_rate: 80
decode_scale_down_kv_rate: 40
load_min_observations: 5
"""
HPA_FILE = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: vllm-p
  labels: {llm-d.ai/role: prefill}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm-p}
  minReplicas: 2
  maxReplicas: 12
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
  - type: External
    external:
      metric: {name: "vllm:num_requests_waiting", selector: {matchLabels: {app: x}}}
      target: {type: AverageValue, averageValue: "2500m"}
  behavior:
    scaleUp:
      stabilizationWindowSeconds: 60
      policies: [{type: Pods, value: 2, periodSeconds: 30}]
    scaleDown: {selectPolicy: Min, tolerance: 50m}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: decode-hpa}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm-decode}
  maxReplicas: 20
  metrics:
  - type: Pods
    pods:
      metric: {name: vllm_kv_cache_usage_perc}
      target: {type: AverageValue, averageValue: 700m}
"""
KEDA_FILE = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: decode-scaler}
spec:
  scaleTargetRef: {name: vllm-decode}
  pollingInterval: 15
  cooldownPeriod: 360
  minReplicaCount: 1
  maxReplicaCount: 10
  fallback: {failureThreshold: 3, replicas: 6}
  advanced:
    restoreToOriginalReplicaCount: true
    horizontalPodAutoscalerConfig:
      behavior: {scaleDown: {stabilizationWindowSeconds: 120}}
  triggers:
  - type: prometheus
    metadata:
      serverAddress: http://prometheus:9090
      query: 'sum(vllm:num_requests_running{job="decode"})'
      threshold: "48"
      activationThreshold: '0.5'
"""
RAY_FILE = """\
proxy_location: EveryNode
applications:
- name: llm
  import_path: app:build
  deployments:
  - name: PrefillServer
    num_replicas: auto
    autoscaling_config: {min_replicas: 1, target_ongoing_requests: 4, initial_replicas: 2}
  - name: DecodeServer
    max_ongoing_requests: 96
    autoscaling_config:
      max_replicas: 12
      target_num_ongoing_requests_per_replica: 48
      upscale_delay_s: 10
  - name: Router
    num_replicas: 2
"""
WVA_FILE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: saturation-scaling-config, namespace: llm-d}
data:
  default: |
    kvCacheThreshold: 0.75
    queueLengthThreshold: 6
    kvSpareTrigger: 0.1
    queueSpareTrigger: 3
    enableLimiter: true
  qwen: |
    model_id: qwen
    kvCacheThreshold: 0.7
"""
AIBRIX_FILE = """\
apiVersion: autoscaling.aibrix.ai/v1alpha1
kind: PodAutoscaler
metadata:
  name: storm-decode
  annotations:
    autoscaling.aibrix.ai/max-scale-up-rate: "3"
    autoscaling.aibrix.ai/scale-down-cooldown-window: 5m
spec:
  scaleTargetRef: {apiVersion: orchestration.aibrix.ai/v1alpha1, kind: StormService, name: storm}
  subTargetSelector: {roleName: decode}
  minReplicas: 1
  maxReplicas: 8
  scalingStrategy: APA
  metricsSources:
  - {metricSourceType: pod, protocolType: http, port: "8000", path: metrics,
     targetMetric: num_requests_running, targetValue: "40"}
"""
OWN_FILE = '# ours\nlaw = "balance"\ndrain = 4.0\nz = 1.5\n'
FILES = {
    "dynamo": DYNAMO,
    "hpa": HPA_FILE,
    "keda": KEDA_FILE,
    "ray-serve": RAY_FILE,
    "wva": WVA_FILE,
    "aibrix": AIBRIX_FILE,
    "own": OWN_FILE,
}


def read(tmp_path, text, **options):
    path = tmp_path / "policy.txt"  # the content tells, not the name
    path.write_text(text)
    return read_policy(path, **options)


# What is read


def test_dynamo(tmp_path):
    file = read(tmp_path, DYNAMO)
    law = file.policy
    assert isinstance(law, DynamoPlanner)
    assert (law.optimization_target, law.max_gpu_budget, law.load_adjustment_interval_seconds) == ("load", 32.0, 10.0)
    assert (law.decode_scale_up_kv_rate, law.prefill_scale_down_queue_tokens) == (80.0, 2000.0)
    assert {each.where: each.value for each in file.unrepresented} == {
        "backend": "vllm",
        "prefill_engine_num_gpu": 1,
        "decode_engine_num_gpu": 1,
        "load_min_observations": 5,
    }


def test_dynamo_json_and_older_names(tmp_path):
    file = read(tmp_path, json.dumps({"optimization_target": "sla", "ttft": 800, "itl_ms": 40.5, "max_gpu_budget": -1}))
    assert (file.kind, file.policy.ttft_ms, file.policy.itl_ms) == ("json", 800.0, 40.5)
    assert file.unrepresented == ()


def test_dynamo_without_a_budget_has_the_products_default(tmp_path):
    file = read(tmp_path, "optimization_target: latency\n")
    assert file.policy.max_gpu_budget == 8.0
    assert any("8 GPUs" in note for note in file.notes)


def test_hpa(tmp_path):
    file = read(tmp_path, HPA_FILE)
    prefill, decode = file.policy.prefill, file.policy.decode
    assert (prefill.metric, prefill.target, prefill.type, prefill.target_type) == (
        "queue_length",
        2.5,
        "External",
        "AverageValue",
    )
    assert (prefill.minReplicas, prefill.maxReplicas, decode.minReplicas) == (2.0, 12.0, 1.0)
    up, down = prefill.behavior.scaleUp, prefill.behavior.scaleDown
    assert (up.stabilizationWindowSeconds, up.policies[0].value, up.policies[0].periodSeconds) == (60.0, 2.0, 30.0)
    # What one direction leaves out is Kubernetes' default for that direction.
    assert (down.stabilizationWindowSeconds, down.selectPolicy, down.tolerance) == (300.0, "Min", 0.05)
    assert down.policies[0].type == "Percent"
    assert (decode.metric, decode.type, decode.target) == ("kv_usage", "Pods", 0.7)
    places = {each.where: each.reason for each in file.unrepresented}
    assert "CPU" in places["document 1: spec.metrics[0]"]
    assert "document 1: spec.metrics[1].external.metric.selector" in places
    assert len(places) == 2
    assert any("prefill pool: label llm-d.ai/role" in note for note in file.notes)
    assert any("decode pool: target 'vllm-decode'" in note for note in file.notes)


def test_keda(tmp_path):
    file = read(tmp_path, KEDA_FILE)
    law = file.policy.decode
    assert file.policy.prefill is None
    assert (law.metric, law.threshold, law.activationThreshold, law.pollingInterval) == ("running", 48.0, 0.5, 15.0)
    assert (law.minReplicaCount, law.maxReplicaCount, law.cooldownPeriod) == (1, 10.0, 360.0)
    assert law.behavior.scaleDown.stabilizationWindowSeconds == 120.0
    assert [each.where for each in file.unrepresented] == [
        "spec.fallback",
        "spec.advanced.restoreToOriginalReplicaCount",
    ]


def test_ray_serve(tmp_path):
    file = read(tmp_path, RAY_FILE)
    prefill, decode = file.policy.prefill, file.policy.decode
    assert (prefill.max_replicas, prefill.target_ongoing_requests) == (100.0, 4.0)
    assert (decode.max_replicas, decode.target_ongoing_requests, decode.upscale_delay_s) == (12.0, 48.0, 10.0)
    places = {each.where for each in file.unrepresented}
    assert "applications[0].deployments[2]" in places
    assert "applications[0].deployments[0].autoscaling_config.initial_replicas" in places
    assert "proxy_location" in places


def test_a_bare_ray_config_needs_the_pool(tmp_path):
    text = '{"target_ongoing_requests": 8, "max_replicas": 6}'
    assert read(tmp_path, text, pool="decode").policy.decode.target_ongoing_requests == 8.0
    with pytest.raises(InputError, match="pool='prefill' or pool='decode'"):
        read(tmp_path, text)


def test_ray_with_a_fixed_number(tmp_path):
    law = read(tmp_path, "name: decode\nnum_replicas: 3\n").policy.decode
    assert (law.min_replicas, law.max_replicas) == (3.0, 3.0)


def test_wva(tmp_path):
    file = read(tmp_path, WVA_FILE)
    assert isinstance(file.policy, WVASaturationV1)
    assert (file.policy.kvCacheThreshold, file.policy.queueLengthThreshold) == (0.75, 6.0)
    assert {each.where for each in file.unrepresented} == {"data.default.enableLimiter", "data.qwen"}
    second = read(tmp_path, "analyzerName: saturation\nscaleUpThreshold: 0.9\nscaleDownBoundary: 0.6\n").policy
    assert isinstance(second, WVATokenCapacityV2)
    assert (second.scaleUpThreshold, second.scaleDownBoundary) == (0.9, 0.6)


def test_aibrix(tmp_path):
    file = read(tmp_path, AIBRIX_FILE)
    law = file.policy.decode
    assert isinstance(file.policy, AIBrixAPA)
    assert (law.metric, law.targetValue, law.max_scale_up_rate, law.scale_down_cooldown_window) == (
        "running",
        40.0,
        3.0,
        300.0,
    )
    assert any("role 'decode'" in note for note in file.notes)
    assert file.unrepresented == ()
    text = AIBRIX_FILE.replace("APA", "KPA").replace("max-scale-up-rate", "panic-threshold")
    law = read(tmp_path, text.replace("scale-down-cooldown-window", "stable-window")).policy
    assert isinstance(law, AIBrixKPA)
    assert (law.decode.panic_threshold, law.decode.stable_window) == (3.0, 300.0)


def test_our_own(tmp_path):
    law = read(tmp_path, OWN_FILE).policy
    assert isinstance(law, BalanceTracking)
    assert (law.drain, law.z, law.guard) == (4.0, 1.5, 15.0)
    assert read(tmp_path, 'law = "thresholds"\nprefill_up = 2\n').policy.prefill_up == 2.0


# Metrics


@pytest.mark.parametrize(
    ("query", "metric", "threshold"),
    [
        ("sum(vllm:num_requests_waiting)", "queue_length", 48.0),
        ("sum by (pod) (sglang:num_running_reqs)", "running", 48.0),
        ("100 * avg(vllm:gpu_cache_usage_perc)", "kv_usage", 0.48),
        ("avg(vllm:kv_cache_usage_perc) * 100", "kv_usage", 0.48),
        ("avg(DCGM_FI_DEV_GPU_UTIL)", "batch_usage", 0.48),
        ("sum(rate(vllm:generation_tokens_total[1m]))", "decode_tps", 48.0),
        ("sum(rate(dynamo_frontend_requests_started_total[30s]))", "arrival_rate", 48.0),
        ("max(trtllm_num_requests_waiting)", "queue_length", 48.0),
    ],
)
def test_queries_are_signals(tmp_path, query, metric, threshold):
    document = yaml.safe_load(KEDA_FILE)
    document["spec"]["triggers"][0]["metadata"]["query"] = query
    document["spec"]["triggers"][0]["metadata"]["activationThreshold"] = "0"
    law = read(tmp_path, yaml.safe_dump(document)).policy.decode
    assert law.metric == metric
    assert law.threshold == pytest.approx(threshold, rel=1e-12)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("avg(vllm:num_requests_waiting)", "mean over replicas"),
        ("max(vllm:num_requests_waiting)", "takes max over replicas"),
        ("sum(max_over_time(vllm:num_requests_waiting[1m]))", "window over time"),
        ("histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[1m])) by (le))", "percentile"),
        ("sum(vllm:num_requests_waiting) / 3", "computes"),
    ],
)
def test_a_query_that_is_not_quite_the_signal_is_reported(tmp_path, query, words):
    document = yaml.safe_load(KEDA_FILE)
    document["spec"]["triggers"][0]["metadata"]["query"] = query
    file = read(tmp_path, yaml.safe_dump(document))
    assert any(words in each.reason for each in file.unrepresented), file.unrepresented


def test_an_unknown_metric_names_the_known_ones_and_can_be_given(tmp_path):
    text = HPA_FILE.replace("vllm:num_requests_waiting", "my_backlog")
    with pytest.raises(InputError, match=r"unknown metric.*vllm:num_requests_waiting"):
        read(tmp_path, text)
    law = read(tmp_path, text, metrics={"my_backlog": ("queue_tokens", 1000.0)}).policy.prefill
    assert (law.metric, law.target) == ("queue_tokens", 2500.0)
    with pytest.raises(InputError, match="queue_tokens"):
        read(tmp_path, text, metrics={"my_backlog": "queue_token"})


def test_one_unknown_metric_among_known_ones_is_reported(tmp_path):
    documents = list(yaml.safe_load_all(HPA_FILE))
    odd = copy.deepcopy(documents[0]["spec"]["metrics"][1])
    odd["external"]["metric"]["name"] = "moon_phase"
    documents[0]["spec"]["metrics"].append(odd)
    file = read(tmp_path, yaml.safe_dump_all(documents))
    assert any(each.value == odd and "unknown metric" in each.reason for each in file.unrepresented)


@pytest.mark.parametrize("target_type", ["Value", "AverageValue"])
@pytest.mark.parametrize("signal", METRICS)
def test_the_query_that_is_written_for_a_signal_is_read_as_that_signal(signal, target_type):
    pool = METRICS[signal].pools[-1]
    found = resolve(query_of(signal, target_type), table(), pool, target_type)
    assert not isinstance(found, str)
    assert (found.signal, found.scale, found.notes) == (signal, 1.0, ())
    # The mean latency has no sum over replicas, which AverageValue asks for.
    assert bool(found.unlike) == (signal in ("ttft", "itl") and target_type == "AverageValue")


# There and back


@pytest.mark.parametrize("name", FILES)
def test_a_round_trip_changes_nothing(tmp_path, name):
    file = read(tmp_path, FILES[name])
    assert file.format == name
    out = tmp_path / "again"
    assert write_policy(file, out) == ()
    assert out.read_text() == FILES[name]  # comments too
    again = read_policy(out)
    assert eqx.tree_equal(again.policy, file.policy)
    assert again.unrepresented == file.unrepresented


CHANGES = {
    "dynamo": (lambda p: p.decode_scale_up_kv_rate, 85.5, ("decode_scale_up_kv_rate",)),
    "hpa": (lambda p: p.prefill.target, 3.75, ("spec", "metrics", 1, "external", "target", "averageValue")),
    "keda": (lambda p: p.decode.threshold, 52.0, ("spec", "triggers", 0, "metadata", "threshold")),
    "ray-serve": (
        lambda p: p.decode.target_ongoing_requests,
        40.0,
        ("applications", 0, "deployments", 1, "autoscaling_config", "target_num_ongoing_requests_per_replica"),
    ),
    "wva": (lambda p: p.kvCacheThreshold, 0.7, ("data", "default")),
    "aibrix": (lambda p: p.decode.targetValue, 44.0, ("spec", "metricsSources", 0, "targetValue")),
    "own": (lambda p: p.drain, 3.0, ("drain",)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_number_is_changed_in_its_place_and_nowhere_else(tmp_path, name):
    where, value, place = CHANGES[name]
    file = read(tmp_path, FILES[name])
    tuned = file.with_policy(eqx.tree_at(where, file.policy, jnp.asarray(value)))
    out = tmp_path / "tuned"
    assert write_policy(tuned, out) == ()
    again = read_policy(out)
    assert float(where(again.policy)) == value
    assert again.unrepresented == file.unrepresented
    old, new = (copy.deepcopy(list(f.document)) for f in (file, again))
    ends = []
    for documents in (old, new):
        held = documents[0]
        for part in place[:-1]:
            held = held[part]
        ends.append(held.pop(place[-1]))
    assert old == new
    assert ends[0] != ends[1]


@pytest.mark.parametrize("name", LAWS)
def test_every_law_is_written_and_read(tmp_path, name):
    policy = law(name, small_fleet(small_plant(kv_capacity=200e3)))
    out = tmp_path / "law.yaml"
    lost = write_policy(policy, out)
    again = read_policy(out)
    assert type(again.policy) is type(policy)
    # KPA as intended is no setting of the product: its file reads as coded.
    assert {each.where for each in lost} == ({"prefill.form", "decode.form"} if name.endswith("intended") else set())
    assert write_policy(again, tmp_path / "twice.yaml") == ()
    assert (tmp_path / "twice.yaml").read_text() == out.read_text()


def test_what_a_file_cannot_hold_is_returned(tmp_path):
    policy = HPA(decode=HPATarget("queue_length", 5.0, maxReplicas=9.0, sync_period=30.0))
    lost = write_policy(policy, tmp_path / "a.yaml")
    assert [(each.where, each.value) for each in lost] == [("decode.sync_period", 30.0)]
    lost = write_policy(DynamoPlanner(max_gpu_budget=32.0, budget_clamp="proportional"), tmp_path / "b.yaml")
    assert [each.where for each in lost] == ["budget_clamp"]
    lost = write_policy(HPA(decode=HPATarget("queue_length", 5.0, maxReplicas=9.5)), tmp_path / "c.yaml")
    assert [each.where for each in lost] == ["decode.maxReplicas"]


def test_json_by_name_and_the_wrong_format(tmp_path):
    write_policy(DynamoPlanner(max_gpu_budget=16.0), tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["max_gpu_budget"] == 16
    file = read(tmp_path, DYNAMO)
    write_policy(file, tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text()) == file.document[0]
    with pytest.raises(InputError, match="JSON holds one document"):
        write_policy(read(tmp_path, HPA_FILE), tmp_path / "c.json")
    with pytest.raises(InputError, match="'dynamo'"):
        write_policy(DynamoPlanner(), tmp_path / "a", "hpa")
    with pytest.raises(InputError, match="a batch of shape"):
        write_policy(eqx.tree_at(lambda p: p.ttft_ms, DynamoPlanner(), jnp.ones(3) * 500), tmp_path / "a")
    with pytest.raises(InputError, match="cannot be written"):
        write_policy(DynamoPlanner(), tmp_path / "no" / "folder" / "a")


def test_kubernetes_own_schema_takes_what_is_written(tmp_path):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    policy = law("hpa", small_fleet())
    rules = HPAScalingRules(60.0, tolerance=0.05, policies=policy.prefill.behavior.scaleUp.policies)
    policy = eqx.tree_at(lambda p: p.prefill.behavior.scaleUp, policy, rules)
    write_policy(policy, tmp_path / "hpa.yaml")
    for document in yaml.safe_load_all((tmp_path / "hpa.yaml").read_text()):
        validate.validate(document, "1.34", strict=True)


# Quantities


def test_quantities_are_exact():
    cases = {
        "500m": 0.5,
        "10k": 1e4,
        "1Gi": 2.0**30,
        "1.5": 1.5,
        "2e3": 2000.0,
        "3E": 3e18,
        "1n": 1e-9,
        ".5": 0.5,
        7: 7.0,
    }
    assert {raw: quantity(raw, "x") for raw in cases} == cases
    assert [write_quantity(v) for v in (5.0, 0.5, 1 / 3)] == ["5", "500m", repr(1 / 3)]
    for bad in ("10K", "5 ", "1m5", "", "nan", "٣", True, [1], "1" * 99):
        with pytest.raises(InputError, match="quantity"):
            quantity(bad, "x")
    assert {t: duration(t, "x") for t in ("30s", "1m30s", "1.5h", "0")} == {
        "30s": 30,
        "1m30s": 90,
        "1.5h": 5400,
        "0": 0,
    }


# Wrong files


def edit(text, path, value):
    """The first document with a value set at the path, or removed (None)."""
    documents = [*yaml.safe_load_all(text)]
    held = documents[0]
    for part in path[:-1]:
        held = held[part]
    if value is None:
        held.pop(path[-1])
    else:
        held[path[-1]] = value
    return yaml.safe_dump_all(documents, sort_keys=False)


METRIC = ("spec", "metrics", 1, "external")
TRIGGER = ("spec", "triggers", 0)
DEPLOYMENT = ("applications", 0, "deployments", 1)
ERRORS = [
    (DYNAMO, ("decode_scale_up_kv_rate",), 0.8, "decode_scale_up_kv_rate.*per cent: write 80 for 0.8"),
    (DYNAMO, ("decode_scale_down_kv_rate",), 90, "decode_scale_down_kv_rate is 90.*below decode_scale_up_kv_rate"),
    (DYNAMO, ("prefill_scale_down_queue_tokens",), 20000, "prefill_scale_down_queue_tokens.*below"),
    (DYNAMO, ("decode_scale_up_kv_rate",), None, "decode_scale_up_kv_rate is None.*no thresholds"),
    (DYNAMO, ("max_gpu_budget",), 1, "max_gpu_budget is 1.*at least 2"),
    (DYNAMO, ("max_gpu_budget",), "32", "max_gpu_budget.*without quotes"),
    (DYNAMO, ("max_gpu_budget",), 3.5, "max_gpu_budget.*whole"),
    (DYNAMO, ("optimization_target",), "throughputs", "did you mean 'throughput'"),
    (DYNAMO, ("mode",), "agg", "mode is 'agg'"),
    (DYNAMO, ("load_adjustment_interval_seconds",), 200, "load_adjustment_interval_seconds.*below"),
    (DYNAMO, ("load_adjustment_interval",), 5, "load_adjustment_interval is 5.*same field"),
    (DYNAMO, ("load_predictor",), "prophet", "Prophet"),
    (DYNAMO, ("ttft_ms",), 0.5, "ttft_ms.*milliseconds: write 500"),
    (DYNAMO, ("enable_load_scaling",), "yes", "enable_load_scaling.*true or false"),
    (HPA_FILE, ("spec", "minReplicas"), 13, "minReplicas is 13.*at most maxReplicas"),
    (HPA_FILE, ("spec", "maxReplicas"), None, "maxReplicas is None.*required|requires"),
    (HPA_FILE, ("spec", "maxReplicas"), "12", "spec.maxReplicas.*without quotes: 12"),
    (HPA_FILE, ("spec", "maxReplicas"), True, "spec.maxReplicas is True"),
    (HPA_FILE, ("apiVersion",), "autoscaling/v1", "apiVersion.*CPU only"),
    (HPA_FILE, ("spec",), None, "spec is None"),
    (HPA_FILE, ("spec",), [1], r"spec is .*mapping"),
    (HPA_FILE, ("spec", "metrics"), {}, "spec.metrics.*a list"),
    (HPA_FILE, ("spec", "metrics"), [], "no metric that fluidq has: the list is empty"),
    (HPA_FILE, (*METRIC, "target", "averageValue"), "10K", r"averageValue.*kilo is a small k"),
    (HPA_FILE, (*METRIC, "target", "averageValue"), "-5", "target is -5"),
    (HPA_FILE, (*METRIC, "target", "averageValue"), None, "averageValue is None"),
    (HPA_FILE, (*METRIC, "target"), None, "external.target is None"),
    (HPA_FILE, (*METRIC, "metric", "name"), "vllm:kv_cache_usage_perc", "prefill pool shows no kv_usage"),
    (HPA_FILE, ("spec", "metrics", 1, "type"), 3, r"metrics\[1\].type is 3"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "policies"), [], "policies.*at least one policy"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "policies", 0, "periodSeconds"), 3600, "periodSeconds is 3600.*1800"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "policies", 0, "value"), None, "value is None"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "selectPolicy"), "Maximum", "did you mean 'Max'"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "stabilizationWindowSeconds"), 7200, "7200.*3600"),
    (HPA_FILE, ("spec", "behavior", "scaleDown", "tolerance"), "10", "tolerance is 10.*0.1 for 10 %"),
    (HPA_FILE, ("metadata", "labels"), {"role": "decode"}, "second HorizontalPodAutoscaler for the decode pool"),
    (KEDA_FILE, ("spec", "maxReplicaCount"), 0, "maxReplicaCount is 0"),
    (KEDA_FILE, ("spec", "minReplicaCount"), 11, "minReplicaCount is 11.*at most maxReplicaCount"),
    (KEDA_FILE, ("spec", "pollingInterval"), 0, "pollingInterval is 0"),
    (KEDA_FILE, (*TRIGGER, "metadata", "threshold"), "many", "threshold is 'many'"),
    (KEDA_FILE, (*TRIGGER, "metadata", "threshold"), "nan", "threshold"),
    (KEDA_FILE, (*TRIGGER, "metadata", "threshold"), None, "threshold is None"),
    (KEDA_FILE, (*TRIGGER, "metadata", "query"), "avg(vllm:kv_cache_usage_perc)", "threshold is 48.*0.48 for 48 %"),
    (KEDA_FILE, (*TRIGGER, "type"), "cron", "cron is not modelled"),
    (KEDA_FILE, (*TRIGGER, "metricType"), "Utilization", "metricType"),
    (KEDA_FILE, ("spec", "triggers"), [], "the list is empty"),
    (RAY_FILE, (*DEPLOYMENT, "autoscaling_config", "max_replicas"), 0, "max_replicas is 0"),
    (RAY_FILE, (*DEPLOYMENT, "autoscaling_config", "min_replicas"), 30, "min_replicas is 30.*at most max_replicas"),
    (RAY_FILE, (*DEPLOYMENT, "autoscaling_config", "target_ongoing_requests"), 8, "the same field"),
    (RAY_FILE, (*DEPLOYMENT, "autoscaling_config", "upscale_delay_s"), -1, "upscale_delay_s is -1"),
    (RAY_FILE, (*DEPLOYMENT, "num_replicas"), 3, "num_replicas is 3.*left out beside autoscaling_config"),
    (RAY_FILE, (*DEPLOYMENT, "name"), "PrefillServer2", "second deployment for the prefill pool"),
    (WVA_FILE, ("data", "default"), "kvCacheThreshold: 80", "kvCacheThreshold is 80.*0.8 for 80 %"),
    (WVA_FILE, ("data", "default"), "kvSpareTrigger: 0.9", "kvSpareTrigger.*below kvCacheThreshold"),
    (WVA_FILE, ("data", "default"), "scaleDownBoundary: 0.9", "scaleDownBoundary.*below scaleUpThreshold"),
    (WVA_FILE, ("data", "default"), "kvCacheThreshold: [", "data.default, line 1.*not YAML"),
    (WVA_FILE, ("data", "default"), 5, "data.default is 5"),
    (WVA_FILE, ("data",), None, "data is None"),
    (AIBRIX_FILE, ("spec", "scalingStrategy"), "AAA", "did you mean 'APA'"),
    (AIBRIX_FILE, ("spec", "scalingStrategy"), "HPA", "APA or KPA"),
    (AIBRIX_FILE, ("spec", "maxReplicas"), 0, "maxReplicas is 0"),
    (AIBRIX_FILE, ("metadata", "annotations", "autoscaling.aibrix.ai/scale-up-tolerance"), "10", "0.1 for 10 %"),
    (AIBRIX_FILE, ("metadata", "annotations", "autoscaling.aibrix.ai/scale-down-cooldown-window"), "300", "duration"),
    (AIBRIX_FILE, ("metadata", "annotations", "autoscaling.aibrix.ai/max-scale-up-rate"), "1", "factor > 1"),
    (AIBRIX_FILE, ("spec", "metricsSources", 0, "targetValue"), "x", "targetValue is 'x'"),
    (AIBRIX_FILE, ("spec", "metricsSources", 0, "targetMetric"), "cpu", "unknown metric"),
]


@pytest.mark.parametrize(
    ("text", "path", "value", "words"), ERRORS, ids=lambda v: None if isinstance(v, str) else str(v)
)
def test_a_wrong_value_is_named_with_file_and_field(tmp_path, text, path, value, words):
    with pytest.raises(InputError) as error:
        read(tmp_path, edit(text, path, value))
    message = str(error.value)
    assert message.startswith(str(tmp_path / "policy.txt"))
    assert re.search(words, message), message
    assert len(message) < 2500


TYPOS = [
    (DYNAMO, ("max_gpu_budgets",), "max_gpu_budget"),
    (HPA_FILE, ("spec", "minReplica"), "minReplicas"),
    (HPA_FILE, ("spec", "behavior", "scaleUp", "stabilisationWindowSeconds"), "stabilizationWindowSeconds"),
    (KEDA_FILE, ("spec", "poolingInterval"), "pollingInterval"),
    (RAY_FILE, (*DEPLOYMENT, "autoscaling_config", "upscale_delays_s"), "upscale_delay_s"),
    (AIBRIX_FILE, ("metadata", "annotations", "autoscaling.aibrix.ai/panic-treshold"), "panic-threshold"),
    (AIBRIX_FILE, ("spec", "maxReplica"), "maxReplicas"),
]


@pytest.mark.parametrize(("text", "path", "near"), TYPOS, ids=[near for *_, near in TYPOS])
def test_an_unknown_field_is_reported_with_the_nearest_and_kept(tmp_path, text, path, near):
    wrong = edit(text, path, 7)
    file = read(tmp_path, wrong)
    found = [each for each in file.unrepresented if each.where.endswith(str(path[-1]))]
    assert len(found) == 1
    assert found[0].value == 7
    assert near in found[0].reason
    write_policy(file, tmp_path / "again")
    assert [*yaml.safe_load_all((tmp_path / "again").read_text())] == [*yaml.safe_load_all(wrong)]
    with pytest.raises(InputError, match="unknown field"):
        read(tmp_path, wrong, strict=True)


def test_a_typo_inside_a_config_map_is_reported(tmp_path):
    file = read(tmp_path, WVA_FILE.replace("kvSpareTrigger", "kvSpareTriger"))
    assert any("kvSpareTrigger" in each.reason for each in file.unrepresented)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = {
    "empty": ("", "empty"),
    "comment only": ("# nothing\n", "no document"),
    "scalar": ("hello\n", "no policy that fluidq knows"),
    "list": ("- 1\n- 2\n", "no policy that fluidq knows"),
    "another kind": ("kind: Deployment\napiVersion: apps/v1\n", "of kind Deployment"),
    "tab": ("a:\n\t- b\n", "line 2 is not YAML"),
    "bomb": (BOMB, "alias bomb"),
    "cycle": ("max_gpu_budget: &a [*a]\n", "alias bomb"),
    "deep": ("x: " + "[" * 200 + "]" * 200, "nested over"),
    "deep json": ("{" + '"a":{' * 200 + "}" * 201, "nested too deeply"),
    "twice": ("max_gpu_budget: 1\nmax_gpu_budget: 2\n", "given twice"),
    "planner as TOML": ("max_gpu_budget = 8\n", "YAML or JSON"),
    "twice in json": ('{"max_gpu_budget": 1, "max_gpu_budget": 2}', "given twice"),
    "no json": ('{"max_gpu_budget": 1,}', "no JSON"),
    "no toml": ('law = "balance\n', "not TOML"),
    "python tag": ("max_gpu_budget: !!python/object/apply:os.system [ls]\n", "not YAML"),
    "number as key": ("1: 2\nmax_gpu_budget: 8\n", "put it in quotes"),
    "bad date": ("max_gpu_budget: 2024-99-99\n", "."),
    "large": ("x: " + "y" * 2_000_000, "bytes"),
    "binary": ("\x00\x01\x02\x03" * 50, "binary"),
    "unknown law": ('law = "balanse"\n', "did you mean 'balance'"),
    "unknown field of a law": ('law = "balance"\ndrains = 3\n', "did you mean 'drain'"),
    "wrong type in a law": ('law = "balance"\ndrain = "3"\n', "without quotes"),
    "down above up": ('law = "thresholds"\ndecode_up = 0.5\n', "decode_down is 0.6.*below decode_up"),
    "share in per cent": ('law = "thresholds"\nratio = 40\n', "write 0.4 for 40 %"),
    "infinite": ('law = "balance"\ndrain = inf\n', "finite"),
    "nan": ("optimization_target: latency\nmin_endpoint: .nan\n", "finite"),
    "huge": ("optimization_target: latency\nmin_endpoint: " + "9" * 400, "2\\^63"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_policy_is_refused(tmp_path, name):
    text, words = TEXTS[name]
    with pytest.raises(InputError, match=words):
        read(tmp_path, text)


def test_every_value_replaced_by_every_kind_of_value_is_an_error_or_a_report(tmp_path):
    """Each value of each file set to null, a list, a mapping, text, a negative and a huge number: never a traceback."""
    count, refused, out = 0, [], tmp_path / "m.json"
    for text in (DYNAMO, HPA_FILE, KEDA_FILE, RAY_FILE, AIBRIX_FILE):
        documents = [*yaml.safe_load_all(text)]
        for path in _paths(documents):
            for value in ([1], {"a": 1}, "x", -1, 10**30, True):
                changed = copy.deepcopy(documents)
                held = changed
                for part in path[:-1]:
                    held = held[part]
                held[path[-1]] = value
                out.write_text(json.dumps(changed[0]) if len(changed) == 1 else yaml.safe_dump_all(changed))
                count += 1
                try:
                    file = read_policy(out)
                except InputError as error:
                    refused.append(str(error))
                else:
                    write_policy(file, tmp_path / "n")
    assert all(message.startswith(str(out)) for message in refused)
    assert len(refused) > 200
    assert count > 400


def _paths(raw, path=()):
    if path:
        yield path
    for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ():
        yield from _paths(value, (*path, key))


def test_the_fleet_is_checked(tmp_path):
    fleet = small_fleet()  # 40 GPUs
    text = HPA_FILE.replace("minReplicas: 2", "minReplicas: 45").replace("maxReplicas: 12", "maxReplicas: 50")
    assert read(tmp_path, text).policy.prefill.minReplicas == 45.0
    with pytest.raises(InputError, match=r"minReplicas = 45.*budget of 40"):
        read(tmp_path, text, fleet=fleet)
    wide = small_fleet(small_plant(prefill_worker=8.0, decode_worker=8.0), initial_gpus=16.0)
    with pytest.raises(InputError, match=r"max_gpu_budget is 8.*at least 16"):
        read(tmp_path, "optimization_target: latency\n", fleet=wide)


def test_an_explicit_pool_and_format(tmp_path):
    file = read(tmp_path, KEDA_FILE, pool="prefill", metrics={"vllm:num_requests_running": "ongoing_requests"})
    assert file.policy.decode is None
    assert file.policy.prefill.metric == "ongoing_requests"
    assert any("as asked for, against" in note for note in file.notes)
    with pytest.raises(InputError, match="their names must tell"):
        read(tmp_path, HPA_FILE, pool="prefill")
    with pytest.raises(InputError, match="did you mean 'prefill'"):
        read(tmp_path, HPA_FILE, pool="prefil")
    with pytest.raises(InputError, match="did you mean 'keda'"):
        read(tmp_path, HPA_FILE, format="kedda")
    with pytest.raises(InputError, match="another one or none"):
        read(tmp_path, HPA_FILE, format="keda")
    assert set(DIALECTS) == set(FILES)
