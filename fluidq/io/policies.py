"""Policy files in and out: the autoscalers' own configurations as the laws of `fluidq.policies`, and back.

What is read: Dynamo's PlannerConfig (YAML or JSON), Kubernetes HPA v2, KEDA ScaledObject, Ray Serve (YAML or JSON),
llm-d's WVA config map, AIBrix PodAutoscaler, and our own laws (TOML). The content tells which, not the file's name.
A pool's object is known by `prefill` or `decode` in its target, labels or name.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fluidq._atomic import write_whole
from fluidq._errors import InputError, refuse, unknown
from fluidq.fleet import Fleet
from fluidq.io import _policy_aibrix as aibrix
from fluidq.io import _policy_dynamo as dynamo
from fluidq.io import _policy_hpa as hpa
from fluidq.io import _policy_keda as keda
from fluidq.io import _policy_own as own
from fluidq.io import _policy_ray as ray
from fluidq.io import _policy_text as text
from fluidq.io import _policy_wva as wva
from fluidq.io._files import PathLike
from fluidq.io._policy_metrics import SOURCES as METRIC_NAMES
from fluidq.io._policy_metrics import table
from fluidq.io._policy_node import Context, Unrepresented, concrete, differences, report
from fluidq.policies.base import Policy
from fluidq.policies.metrics import POOLS
from fluidq.policies.per_pool import PerPool

DIALECTS: dict[str, ModuleType] = {d.NAME: d for d in (own, hpa, keda, aibrix, wva, ray, dynamo)}

__all__ = ["DIALECTS", "METRIC_NAMES", "PolicyFile", "Unrepresented", "read_policy", "write_policy"]


@dataclass(frozen=True)
class PolicyFile:
    """A policy and the file that it came from.

    Attributes:
        policy: the law.
        format: a name of `DIALECTS`.
        notes: what was decided on the way: which pool an object scales, a metric that is not quite the signal.
        unrepresented: what fluidq has no place for; it is kept in the document and written back.
        document: the documents of the file, one per object.
        text, kind: the file's text, comments included, and what it is: yaml, json or toml.
        pool, metrics: the arguments that it was read with.
    """

    policy: Policy
    format: str
    notes: tuple[str, ...] = ()
    unrepresented: tuple[Unrepresented, ...] = ()
    document: tuple[Any, ...] = ()
    text: str = ""
    kind: str = "yaml"
    pool: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def with_policy(self, policy: Policy) -> "PolicyFile":
        """The same file with other numbers in its law, a tuned one say."""
        return replace(self, policy=policy)

    def __str__(self) -> str:
        lines = [f"{self.format}: {type(self.policy).__name__}", *self.notes]
        return "\n".join([*lines, *(f"not represented: {each}" for each in self.unrepresented)])


def read_policy(
    path: PathLike,
    *,
    fleet: Fleet | None = None,
    format: str | None = None,
    pool: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> PolicyFile:
    """The policy of a file.

    Arguments:
        fleet: checked against: its budget must hold the least workers that the file asks for.
        format: a name of `DIALECTS`; by default the content tells.
        pool: prefill or decode, where the file scales one pool and does not say which.
        metrics: further metric names, NAME -> signal of `fluidq.policies.metrics` or (signal, scale to its unit).
        strict: an unknown field is an error, not an entry of the report.

    Raises InputError naming file and field: no readable text, no policy in it, a value out of range or in the wrong
    unit, a down threshold above the up threshold, a minimum above the maximum, a budget below the least workers.
    """
    file = os.fsdecode(path)
    if pool is not None and pool not in POOLS:
        raise unknown("pool", str(pool), POOLS)
    kind, words, documents = text.load(path)
    ctx = Context(pool=pool, metrics=table(metrics), fleet=fleet, documents=len(documents))
    try:
        dialect = _dialect(documents, format)
        if kind == "toml" and dialect is not own:
            raise refuse("the file", "TOML", f"YAML or JSON, as the product of {dialect.NAME} reads it")
        policy = dialect.read(ctx, documents)
        if fleet is not None and isinstance(policy, PerPool):
            _check_footprint(policy, fleet)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    left, strange = report(ctx, documents)
    if strict and strange:
        raise InputError(f"{file}: {strange[0]}")
    return PolicyFile(
        policy=policy,
        format=dialect.NAME,
        notes=tuple(ctx.notes),
        unrepresented=tuple(left),
        document=tuple(documents),
        text=words,
        kind=kind,
        pool=pool,
        metrics=dict(metrics or {}),
    )


def write_policy(policy: PolicyFile | Policy, path: PathLike, format: str | None = None) -> tuple[Unrepresented, ...]:
    """Write the policy as its product reads it, and return what the file cannot hold.

    A `PolicyFile` is written as the document that it came from, its unrepresented parts included: byte for byte where
    its policy is unchanged, else with the changed values in place (comments are then lost). A bare policy becomes a new
    document: TOML for our own laws, else YAML; YAML becomes JSON where `path` ends in .json. `format` is a name of
    `DIALECTS`; by default the product of the law. The file is whole or absent.

    Raises InputError for a batched policy, a format that is not the law's, and a path that cannot be written.
    """
    given = policy if isinstance(policy, PolicyFile) else None
    law = given.policy if given else policy
    assert isinstance(law, Policy)
    dialect = DIALECTS[given.format] if given else _dialect_of(law)
    if format is not None and format != dialect.NAME:
        if format not in DIALECTS:
            raise unknown("format", format, DIALECTS)
        raise refuse("format", format, f"{dialect.NAME!r}: {type(law).__name__} is its law")
    documents = copy.deepcopy(list(given.document)) if given else []
    pool, names = (given.pool, table(given.metrics)) if given else (None, table())
    dialect.write(Context(pool, names, documents=max(1, len(documents))), documents, law)
    target = Path(os.fsdecode(path))
    again = dialect.read(Context(pool, names, documents=len(documents)), documents)
    lost = tuple(
        Unrepresented(where, here, f"the {dialect.NAME} file holds {there!r}")
        for where, here, there in differences(law, again)
    )
    kind = given.kind if given else "toml" if dialect is own else "yaml"
    if kind == "yaml" and target.suffix.lower() == ".json":
        kind = "json"
    same_text = given is not None and kind == given.kind and documents == list(given.document)
    write_whole(target, given.text if given and same_text else text.dump(kind, documents))
    return lost


def _dialect(documents: list[Any], format: str | None) -> ModuleType:
    if format is not None:
        if format not in DIALECTS:
            raise unknown("format", format, DIALECTS)
        if not DIALECTS[format].detect(documents):
            raise refuse("format", format, "that of the content, which is another one or none")
        return DIALECTS[format]
    for dialect in DIALECTS.values():
        if dialect.detect(documents):
            return dialect
    kinds = sorted({str(d.get("kind")) for d in documents if isinstance(d, dict) and "kind" in d})
    keys = sorted({key for d in documents if isinstance(d, dict) for key in d})[:6]
    seen = f"of kind {', '.join(kinds)}" if kinds else f"with the fields {', '.join(keys)}" if keys else "no mapping"
    raise InputError(
        f"no policy that fluidq knows: the content is {seen}; known "
        "are a Dynamo PlannerConfig, HorizontalPodAutoscaler, ScaledObject, PodAutoscaler, a Ray Serve configuration, "
        "a WVA config map, and TOML with `law = ...`."
    )


def _dialect_of(law: Policy) -> ModuleType:
    for dialect in DIALECTS.values():
        if isinstance(law, dialect.LAW):
            return dialect
    raise refuse("policy", type(law).__name__, "a law that has a file format")


def _check_footprint(policy: PerPool, fleet: Fleet) -> None:
    """The least replicas of both pools fit into the fleet's budget."""
    floor, words = 0.0, []
    for pool, gpus in zip(POOLS, fleet.per_worker, strict=True):
        law = getattr(policy, pool)
        name = next((n for n in ("minReplicas", "minReplicaCount", "min_replicas") if hasattr(law, n)), None)
        least = concrete(fleet.min_workers) if name is None else concrete(getattr(law, name))
        floor += least * float(gpus)
        words.append(f"{pool} {name or 'min_workers'} = {least:g}")
    if floor > float(fleet.budget):
        raise InputError(
            f"{', '.join(words)}: {floor:g} GPUs at least, over the fleet's budget of {float(fleet.budget):g}."
        )
