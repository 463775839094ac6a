"""A plan as text: the report of `fluidq size`."""

import math
from typing import TYPE_CHECKING

from fluidq._bounds import columns, ladder_text
from fluidq._size_point import BATCH_LIMITS
from fluidq._size_splits import LIMITS
from fluidq.units import format

if TYPE_CHECKING:
    from fluidq._size_buffer import Windows
    from fluidq.sizing import Plan


def report(plan: "Plan") -> str:
    """The whole report."""
    d = plan.deployment
    title = f"{d.model} on {plan.gpus} x {d.gpu}, {plan.isl:,g} tokens in, {plan.osl:,g} out"
    if plan.hit or plan.hit_decode:
        title += f", prefix hit {plan.hit:.3g} (decode side {plan.hit_decode:.3g})"
    parts = [title, "Balance\n" + _balance(plan), "Split\n" + _split(plan), "Fabric\n" + _fabric(plan)]
    if plan.windows is not None:
        parts.append("Memory that transfers take at full rate (D25)\n" + _windows(plan.windows))
    if plan.buffer is not None:
        parts.append(_buffer(plan))
    if plan.ladder:
        title = "Buffer per prefill GPU for a swing of one whole flow either way (D15)"
        parts.append(f"{title}\n{ladder_text(plan.ladder)}")
    if plan.deployment.sources:
        parts.append("Sources\n" + _sources(plan))
    return "\n\n".join(parts)


def _balance(plan: "Plan") -> str:
    d = plan.deployment
    labels = {name: figure.label for name, figure in d.sources.items()}

    def others(name: str) -> list[tuple[str, str, str]]:
        return [("", "or", f"{a.value:,.0f}: {a.label}") for a in d.alternatives.get(name, ())]

    rows = [
        ("phi", f"{plan.phi:.4f}", "prefill share of the GPUs at balance (D01)"),
        ("prefill rate", f"{d.r_P:,.0f} tok/s per GPU", labels.get("r_P", "")),
        *others("r_P"),
        ("decode step", format(plan.t_step, "seconds"), labels.get("t_step", "")),
        ("decode batch", f"{plan.batch:.4g} per GPU", f"at {plan.context:,.0f} tokens of context, mean over the steps"),
        *_limits(plan),
        ("KV size", f"{d.kappa_store:,.0f} B/token", labels.get("kappa_store", "")),
        *others("kappa_store"),
    ]
    return columns(rows)


def _limits(plan: "Plan") -> list[tuple[str, str, str]]:
    """What sets the batch and the load, where anything but the default does."""
    p, service = plan.point, plan.service
    rows = []
    for name, most in sorted(p.batch_limits.items(), key=lambda limit: limit[1]):
        if math.isfinite(most):
            binds = ": binds" if name == p.batch_binds else ""
            rows.append(("", f"<= {most:,.4g}", f"{BATCH_LIMITS[name]}{binds}"))
    if list(p.batch_limits) == ["given", "memory"] and p.batch_binds == "given":
        rows = [("", f"<= {p.batch_limits['memory']:,.4g}", f"{BATCH_LIMITS['memory']}; the batch is as given")]
    if service.accept > 1 or service.tpot is not None:
        words = f"{service.accept:g} tokens per step" if service.accept > 1 else "one token per step"
        rows.append(("TPOT", format(p.tpot, "seconds"), words))
    if service.ttft is not None or service.headroom < 1:
        why = "the TTFT limit" if p.load_binds == "ttft" else "as given"
        ttft = f"; mean TTFT {format(p.ttft, 'seconds')} (D24)" if math.isfinite(p.ttft) else ""
        rows.append(("prefill load", f"{p.load:.3f}", f"{why}{ttft}"))
    if plan.traffic.service_scv:
        words = f"squared variation of the computed lengths; E[I^2] of attention {plan.traffic.attended:,.3g} tok^2"
        rows.append(("lengths", f"{plan.traffic.service_scv:.3g}", words))
    return rows


def _windows(w: "Windows") -> str:
    lease = ", ".join(f"{format(held, 'bytes')} in {time:g} s" for time, held in w.held)
    saved = f"each prompt in {w.chunks} chunks (Mooncake); saves {format(w.saved, 'seconds')} of TTFT"
    rows = [
        ("reserved", format(w.reserved, "bytes"), "per decode GPU, for prompts being fetched (vLLM with NIXL)"),
        ("kept", format(w.written, "bytes"), f"per prefill GPU, {saved}"),
        ("unfetched", "", f"per prefill GPU, if nobody fetches: {lease}"),
    ]
    return columns(rows)


def _buffer(plan: "Plan") -> str:
    assert plan.buffer is not None
    tau, C, Q0 = plan.buffer
    rows = [("swing", "full or empty", "loss L", "lost")]
    for s in plan.shocks:
        hit = format(s.time_to_boundary, "seconds") if math.isfinite(s.time_to_boundary) else "never"
        rows.append((f"{s.swing:+.0%}", hit, f"{s.loss_fraction:.4f}", format(s.lost_bytes, "bytes")))
    title = (
        f"Steps of the flow against C = {format(C, 'bytes')}, Q0 = {format(Q0, 'bytes')} per prefill GPU and a cold "
        f"start of {format(tau, 'seconds')} (D14)"
    )
    return f"{title}\n{columns(rows) if plan.shocks else '  no KV has to move'}"


def _split(plan: "Plan") -> str:
    d = plan.deployment
    idle = plan.gpus - plan.prefill_gpus - plan.decode_gpus
    span = [s.prefill_gpus for s in plan.flat]
    rows = [
        ("prefill", f"{plan.prefill_gpus} GPUs", f"in workers of {d.gpus_per_prefill_worker}"),
        ("decode", f"{plan.decode_gpus} GPUs", f"in workers of {d.gpus_per_decode_worker}"),
        *([("idle", f"{idle} GPUs", "no whole worker fits")] if idle else []),
        ("throughput", f"{plan.throughput:.4g} req/s", f"set by {LIMITS[plan.binds]}"),
        ("rounding", f"{plan.rounding_loss:.1%} lost", f"of {plan.balanced_throughput:.4g} req/s at phi (D08)"),
        (
            "flat region",
            f"{min(span)} to {max(span)}",
            f"prefill GPUs: within {100 * plan.within:g} % of the best, {len(span)} split{'s' * (len(span) > 1)}",
        ),
    ]
    if plan.prices is not None:
        rows.append(("cost", f"{plan.cost_per_million:.4g}", "per million tokens, input and output, at those prices"))
    shown = plan.flat if len(plan.flat) <= 7 else (*plan.flat[:3], *plan.flat[-3:])
    rows += [
        ("", f"{s.prefill_gpus} + {s.decode_gpus}", f"{s.relative:.1%} of the best, set by {LIMITS[s.binds]}")
        for s in shown
    ]
    return columns(rows)


def _fabric(plan: "Plan") -> str:
    f = plan.fabric
    if not f.required:
        return "  no KV has to move"
    ends = ((f.send, "sending NIC"), (f.receive, "receiving NICs, shared"), (f.whole, "whole fabric, shared"))
    rows = [("required", format(f.required, "bytes/s"), "per prefill GPU at full rate (D12)")]
    rows += [("limit", format(end, "bytes/s"), name) for end, name in ends if math.isfinite(end)]
    binds = f"{LIMITS[f.binds]} bind first" if f.margin >= 1 else f"below 1: {LIMITS[f.binds]} cannot carry it"
    rows.append(("margin", format(f.margin, "1"), binds))
    if plan.critical_hit is not None:
        rows.append(("critical hit", f"{plan.critical_hit:.3f}", "prefix hit rate at which the NIC is full (D12)"))
    return columns(rows)


def _sources(plan: "Plan") -> str:
    """Each source once, with the names of the figures that rest on it."""
    names: dict[str, dict[str, None]] = {}
    for name, figure in plan.deployment.sources.items():
        for entry in (figure, *plan.deployment.alternatives.get(name, ())):
            names.setdefault(entry.source, {})[name] = None
    return "\n".join(f"  {', '.join(fields)}: {source}" for source, fields in names.items())
