"""The certificate as a page for people."""

import textwrap
from typing import Any

from fluidq._certificate_hard import CONFIDENCE


def text(c: Any) -> str:
    """The page of a `fluidq.certificate.Certificate`."""
    a, b = c.tuning["before"], c.tuning["after"]
    u, d = c.unseen, c.unseen.difference
    rows = [("Verdict", c.verdict), *(("", f"- {reason}") for reason in c.reasons)]
    rows.append(
        ("Tuning", f"hard law, {_pair(a['cost'], b['cost'])}; GPU-hours {_pair(a['gpu_hours'], b['gpu_hours'])}")
    )
    rows.append(("", f"SLO attainment {a['slo_attainment']:.1%} -> {b['slo_attainment']:.1%}"))
    rows.append(("Unseen", f"{u.draws} draws, {_pair(u.before['cost'], u.after['cost'])}; better on {u.better}"))
    rows.append(("", f"SLO attainment {u.before['attainment']:.1%} -> {u.after['attainment']:.1%}"))
    if u.draws > 1:
        interval = f"{CONFIDENCE:.0%} interval {d.low:,.4g} to {d.high:,.4g}"
        rows.append(("", f"difference {d.mean:,.4g} GPU-h, {interval} ({u.method})"))
    r = c.requests
    if r is None:
        rows.append(("Requests", f"not replayed on requests: {c.not_replayed}"))
    else:
        rows.append(("Requests", f"{_pair(r.before['cost'], r.after['cost'])}; {r.sample}"))
        for name, x, form in (("cost", r.cost, ",.4g"), ("SLO attainment", r.attainment, ".2%")):
            ends = f"{x.low:{form}} to {x.high:{form}}"
            rows.append(
                ("", f"{name} difference {x.mean:{form}}, {r.confidence:.0%} interval {ends} (Student's t, seeds)")
            )
    if c.bound_ratio_before is None:
        rows.append(("Bound", f"none: {c.no_bound or 'the clairvoyant bound is 0'}"))
    else:
        ratios = f"{c.bound_ratio_before:.3f} -> {c.bound_ratio_after:.3f} times the clairvoyant bound"
        whole = "" if c.attainment is None else "; the whole cost, not only what is paid"
        rows.append(("Bound", f"hard cost {ratios} ({c.bound_after:,.5g} GPU-h){whole}"))
    s = c.search
    error = c.gradient["max_relative_error"]
    rows.append(("Gradient", f"within {error:.1e} of central differences at {c.gradient['at']} (relaxed law)"))
    rows.append(("", f"estimator {s['estimator']}{': ' + s['why'] if s['why'] else ''}"))
    if s["first_finding"]:
        steps = "1 step" if s["steps_not_taken"] == 1 else f"{s['steps_not_taken']} steps"
        counts = f"{steps} not taken, {s['exploded']} exploded"
        rows.append(("Health", f"{counts}; the first: {s['first_finding']}"))
    else:
        rows.append(("Health", f"all {s['steps']} steps of {s['starts']} starts taken"))
    rows.append(("Stability", c.stability["text"]))
    rows.append(("Reaction", c.reaction["text"]))
    met = [x["text"] for x in c.binding] or ["no constraint is met"]
    rows += [("Binding" if i == 0 else "", line) for i, line in enumerate(met)]
    ends = c.at_bounds or ("no parameter at an end of its range",)
    rows += [("Bounds" if i == 0 else "", line) for i, line in enumerate(ends)]
    return "\n".join(_row(name, line) for name, line in rows)


def _row(name: str, line: str) -> str:
    """One entry, its further lines under its first."""
    indent = " " * (14 if line.startswith("- ") else 12)
    return textwrap.fill(f"{name:<12}{line}", 118, subsequent_indent=indent, break_on_hyphens=False)


def _pair(before: float, after: float) -> str:
    change = f" ({after / before - 1:+.1%})" if before > 0 else ""
    return f"{before:,.5g} -> {after:,.5g} GPU-h{change}"
