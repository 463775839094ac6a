"""`fluidq size`: the split of a fleet between the pools."""

import argparse
import math
from typing import TYPE_CHECKING, Any

from fluidq._errors import InputError, refuse, unknown
from fluidq.commands._common import folder, show, whole, write_json

if TYPE_CHECKING:
    from fluidq._size_traffic import Traffic
    from fluidq.deployment import Deployment
    from fluidq.sizing import Plan

HELP = "Split a fleet between prefill and decode, and check the fabric."
EPILOG = (
    "example: fluidq size --model GLM-5.2 --gpu B200 --nic 400Gbps --isl 8192 --osl 1024 --gpus 64; "
    "with --tpot, --concurrency or --batch max the decode batch is solved for; --compare asks whether to split at all"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--model", help="model of the catalogue (default GLM-5.2)")
    add("--gpu", help="GPU of the catalogue (default B200)")
    add("--isl", metavar="TOKENS", help="mean input length (default 8192)")
    add("--osl", metavar="TOKENS", help="mean output length (default 1024)")
    add("--gpus", metavar="N", help="GPUs of the fleet (default 64)")
    add("--nic", metavar="RATE", help="link per GPU and direction, e.g. 400Gbps or 50GB/s")
    add("--fabric", metavar="RATE", help="limit of the whole fabric, e.g. 3.2Tbps")
    add("--hit", metavar="SHARE", help="input tokens cached at prefill, 0..1 or %% (default 0)")
    add("--hit-decode", metavar="SHARE", help="input tokens cached at decode, 0..1 or %% (default 0)")
    add("--kv-per-token", metavar="SIZE", help="KV bytes per token, e.g. 47.7kB")
    add("--prefill-rate", metavar="RATE", help="tok/s per GPU instead of the roofline")
    add("--prefill-efficiency", metavar="SHARE", help="share of peak compute (default 1: the roofline)")
    add("--attention", action="store_true", help="count attention's arithmetic in prefill, quadratic in the prompt")
    add("--precision", help="of weights and compute: bf16, fp8 or fp4")
    add("--tp", type=int, metavar="GPUS", help="GPUs that share the attention of a sequence")
    add("--batch", metavar="B", help="decode sequences per GPU (default 64); 'max': what fits in HBM")
    add("--prefill-worker", type=int, metavar="GPUS", help="GPUs per prefill worker")
    add("--decode-worker", type=int, metavar="GPUS", help="GPUs per decode worker")
    add("--catalog", metavar="FILE", help="TOML with your own GPUs and models, laid over the catalogue")
    add("--within", metavar="SHARE", help="splits this near to the best are flat (default 5%%)")
    add("--scenario", metavar="FILE", help="deployment, fleet and workload of a scenario file; flags come on top")

    limits = parser.add_argument_group("limits that are solved for")
    add = limits.add_argument
    add("--tpot", metavar="TIME", help="longest mean time per output token, e.g. 40ms")
    add("--ttft", metavar="TIME", help="longest mean time to first token, e.g. 1s")
    add("--concurrency", metavar="N", help="requests in flight")
    add("--accept", metavar="TOKENS", help="output tokens per step (speculative decoding, default 1)")
    add("--headroom", metavar="SHARE", help="share of the prefill rate to use (default 1)")

    traffic = parser.add_argument_group("distributions of lengths")
    add = traffic.add_argument
    add("--isl-scv", metavar="X", help="squared coefficient of variation of the input length (default 0)")
    add("--osl-scv", metavar="X", help="squared coefficient of variation of the output length (default 0)")
    add("--trace", metavar="FILE", help="lengths of the requests of a trace")
    add("--class", dest="classes", action="append", metavar="W:ISL:OSL[:HIT]", help="a class; repeat for several")

    types = parser.add_argument_group("several types of GPU, prices")
    add = types.add_argument
    add("--prefill-gpu", metavar="GPU", help="GPU of the prefill pool where it is another one")
    add("--decode-gpu", metavar="GPU", help="GPU of the decode pool where it is another one")
    add("--fleet", metavar="GPU=N,...", help="numbers of each type that you have: gives each its role")
    add("--price", metavar="GPU=X,...", help="price of a GPU-hour, by type or one number for all")

    more = parser.add_argument_group("buffer, fabric and answers")
    add = more.add_argument
    add("--cold-start", metavar="TIME", help="time until a resize lands, to judge --buffer")
    add("--buffer", metavar="SIZE", help="handoff buffer per prefill GPU, e.g. 150GB")
    add("--stock", metavar="SIZE", help="its level (default half)")
    add("--block", metavar="SIZE", help="size of one transfer: what it reaches of the link, measured")
    add("--link-efficiency", metavar="SHARE", help="share of the rated link that transfers reach (default 1)")
    add("--sensitivities", action="store_true", help="what one more of each is worth, in GPUs and cost")
    add("--shocks-per-day", metavar="N", help="steps of the flow per day, for --sensitivities (default 0)")
    add("--swing", metavar="SHARE", help="size of such a step as a share of the flow (default 50%%)")
    add("--compare", action="store_true", help="should I disaggregate? exit code 1 where the answer is no")
    add("--overlap", metavar="SHARE", help="overlap of chunked prefill, for --compare (default: not known)")
    add("--specialisation", metavar="SHARE", help="gain of pools of their own, for --compare (default 0)")
    add("--saturation", metavar="SHARE", help="share of the SMs that saturates the HBM, for --compare (default 40%%)")
    add("--activations", metavar="SIZE", help="what prefill reserves per GPU and decode does not, for --compare")
    add("--example", action="store_true", help="the article's worked example, every figure, with the corrections")
    add("--systems", action="store_true", help="the systems the article names: model, call and check of each")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 where --compare says no or a check of --systems fails; raises InputError for a bad flag."""
    out = folder(args.out)
    if args.systems or args.example:
        return _fixed(args, out)
    if args.scenario is not None:
        _take_scenario(args)
    traffic = _traffic(args)
    if args.fleet is not None:
        return _types(args, out, traffic)
    plan = _plan(args, traffic)
    data: dict[str, Any] = plan.to_dict()
    text, code = [str(plan)], 0
    if args.sensitivities:
        from fluidq._size_cost import sensitivities, sensitivity_text

        found = sensitivities(
            plan,
            swing=_number(args, "swing", "1", 0.5),
            shocks_per_day=_number(args, "shocks_per_day", "1", 0.0, minimum=0.0),
        )
        data["sensitivities"] = [s.to_dict() for s in found]
        title = "One more of each at this throughput (slopes at fractional pools; 0 is left out)"
        text.append(f"{title}\n{sensitivity_text(found, plan.prices is not None)}")
    if args.compare:
        from fluidq._size_compare import NO, compare

        verdict = compare(
            plan,
            swing=_number(args, "swing", "1", 0.5),
            overlap=None if args.overlap is None else _number(args, "overlap", "1"),
            specialisation=_number(args, "specialisation", "1", 0.0),
            **({} if args.saturation is None else {"saturation": _number(args, "saturation", "1")}),
            activations=None if args.activations is None else _number(args, "activations", "bytes"),
        )
        data["compare"] = verdict.to_dict()
        text.append(str(verdict))
        code = int(verdict.answer == NO)
    if out:
        write_json(out / "size.json", data)
    show(args, data, lambda: "\n\n".join(text))
    return code


def _fixed(args: argparse.Namespace, out: Any) -> int:
    if args.example:
        from fluidq._size_example import worked_example

        example = worked_example()
        data, text, good = example.to_dict(), str(example), example.holds
        name = "example.json"
    else:
        from fluidq.systems import report

        page = report()
        data, text, good = page.to_dict(), str(page), page.holds
        name = "systems.json"
    if out:
        write_json(out / name, data)
    show(args, data, lambda: text)
    return 0 if good else 1


def _number(args: argparse.Namespace, name: str, dimension: str, default: float = math.nan, **limits: float) -> float:
    from fluidq.units import parse

    value = getattr(args, name)
    return default if value is None else parse(value, dimension, "--" + name.replace("_", "-"), **limits)


def _take_scenario(args: argparse.Namespace) -> None:
    """Fill the flags that were not given from a scenario file."""
    from fluidq.scenario import read_scenario

    sections = read_scenario(args.scenario)
    conf = sections.get("deployment", {})
    for key in ("t_step_a", "t_step_b", "t_step_c"):
        if key in conf:
            setattr(args, key, conf[key])
    known = {
        "model": "model",
        "gpu": "gpu",
        "nic": "nic",
        "fabric": "fabric",
        "prefill_rate": "prefill_rate",
        "prefill_efficiency": "prefill_efficiency",
        "kv_per_token": "kv_per_token",
        "batch": "batch",
        "gpus_per_prefill_worker": "prefill_worker",
        "gpus_per_decode_worker": "decode_worker",
    }
    units = {"nic": "B/s", "fabric": "B/s", "kv_per_token": "B", "prefill_rate": "tok/s", "cold_start": "s"}
    found = [(known[key], conf[key], units.get(key, "")) for key in conf if key in known]
    fleet, work = sections.get("fleet", {}), sections.get("workload", {})
    found += [("gpus", fleet["gpus"], "")] if "gpus" in fleet else []
    found += [("cold_start", fleet["cold_start"], "s")] if {"cold_start", "buffer_per_gpu"} <= set(fleet) else []
    found += [("buffer", fleet["buffer_per_gpu"], "B")] if {"cold_start", "buffer_per_gpu"} <= set(fleet) else []
    found += [("trace", work["trace"], "")] if "trace" in work and args.isl is None and args.osl is None else []
    found += [("hit", work["hit"], "")] if "hit" in work and "trace" not in work else []
    for flag, value, unit in found:
        if getattr(args, flag) is None:
            text = value if isinstance(value, str) else f"{value!r}{unit}"
            setattr(args, flag, int(value) if flag.endswith("_worker") else text)


def _deployment(args: argparse.Namespace, gpu: str) -> "Deployment":
    from dataclasses import replace

    from fluidq.catalog import Figure
    from fluidq.deployment import Deployment
    from fluidq.units import parse

    given: dict[str, Any] = {}
    for flag, name, dimension in (
        ("nic", "nic", "bytes/s"),
        ("fabric", "fabric", "bytes/s"),
        ("kv_per_token", "kv_bytes_per_token", "bytes/token"),
        ("prefill_rate", "r_P", "tokens/s"),
        ("prefill_efficiency", "prefill_efficiency", "1"),
    ):
        if getattr(args, flag) is not None:
            given[name] = parse(getattr(args, flag), dimension, "--" + flag.replace("_", "-"), above=0.0)
    if args.batch is not None and args.batch != "max":
        given["batch"] = parse(args.batch, "1", "--batch", above=0.0)
    for flag, name in (
        ("prefill_worker", "gpus_per_prefill_worker"),
        ("decode_worker", "gpus_per_decode_worker"),
        ("precision", "precision"),
        ("tp", "tp"),
        ("catalog", "own"),
    ):
        if getattr(args, flag) is not None:
            given[name] = getattr(args, flag)
    d = Deployment.preset(args.model or "GLM-5.2", gpu, attention=args.attention, **given)
    share = 1.0
    if args.block is not None:
        from fluidq._size_buffer import block_efficiency

        share *= block_efficiency(parse(args.block, "bytes", "--block", above=0.0))
    if args.link_efficiency is not None:
        part = parse(args.link_efficiency, "1", "--link-efficiency", above=0.0)
        if part > 1:
            raise refuse("--link-efficiency", args.link_efficiency, "a share of the rated link in (0, 1]")
        share *= part
    if share < 1:
        link = Figure(d.nic * share, f"{share:.0%} of {d.nic / 1e9:g} GB/s reached", d.sources["nic"].source)
        d = replace(d, nic=d.nic * share, nic_decode=d.receive_nic() * share, sources={**d.sources, "nic": link})
    steps = {key: getattr(args, key) for key in ("t_step_a", "t_step_b", "t_step_c") if hasattr(args, key)}
    if steps:
        step = Figure(steps.get("t_step_a", d.t_step_a), "as given", "the scenario")
        d = replace(d, **steps, sources={**d.sources, "t_step": step})
    return d


def _traffic(args: argparse.Namespace) -> "Traffic":
    from fluidq._size_traffic import Traffic
    from fluidq.units import parse

    hit = _number(args, "hit", "1", 0.0, minimum=0.0)
    hit_decode = _number(args, "hit_decode", "1", 0.0, minimum=0.0)
    lengths = args.isl is not None or args.osl is not None or args.isl_scv is not None or args.osl_scv is not None
    if sum((args.trace is not None, args.classes is not None, lengths)) > 1:
        raise InputError("--trace, --class and --isl/--osl exclude each other: give the lengths once.")
    if args.trace is not None and args.hit is not None:
        raise InputError("--trace and --hit exclude each other: prefix blocks of the trace say what is cached.")
    if args.trace is not None:
        from fluidq.io.traces import Requests, load_trace, read_trace

        load = load_trace(args.trace)
        data = load.data
        if isinstance(data, Requests):
            return Traffic.of_lengths(data.isl, data.osl, data.computed, hit_decode)
        workload, _ = read_trace(args.trace)
        return Traffic.of(
            workload.mean_isl, workload.mean_osl, 1 - workload.mean_isl_computed / workload.mean_isl, hit_decode
        )
    if args.classes is not None:
        found = []
        for text in args.classes:
            parts = text.split(":")
            if len(parts) not in (3, 4):
                raise refuse("--class", text, "WEIGHT:ISL:OSL or WEIGHT:ISL:OSL:HIT, such as 0.7:8192:1024")
            weight = parse(parts[0], "1", "--class weight", above=0.0)
            isl, osl = (parse(p, "tokens", f"--class {n}", minimum=0.0) for p, n in zip(parts[1:3], ("ISL", "OSL")))  # noqa: B905
            own = parse(parts[3], "1", "--class hit", minimum=0.0) if len(parts) == 4 else hit
            found.append((weight, Traffic.of(isl, osl, own, hit_decode)))
        return Traffic.mixed(found)
    if hit == 1:
        raise refuse("--hit", args.hit, "below 1: with every token cached there is no prefill")
    return Traffic.of(
        _number(args, "isl", "tokens", 8192.0, minimum=0.0),
        _number(args, "osl", "tokens", 1024.0, minimum=0.0),
        hit,
        hit_decode,
        _number(args, "isl_scv", "1", 0.0, minimum=0.0),
        _number(args, "osl_scv", "1", 0.0, minimum=0.0),
    )


def _prices(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, float] | None:
    """Price of a GPU-hour by name; one bare number is for all."""
    if args.price is None:
        return None
    pairs = _pairs(args.price, "--price") if "=" in args.price else dict.fromkeys(names, _float(args.price, "--price"))
    lower = {name.lower(): name for name in names}
    found = {}
    for name, price in pairs.items():
        if name.lower() not in lower:
            raise unknown("GPU in --price", name, names)
        if not price > 0:
            raise refuse(f"--price {name}", price, "a price of a GPU-hour > 0")
        found[lower[name.lower()]] = price
    missing = [name for name in names if name not in found]
    if missing:
        raise refuse("--price", args.price, f"given for {' and '.join(missing)} too")
    return found


def _pairs(text: str, flag: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not (sign and name.strip()):
            raise refuse(flag, text, "NAME=NUMBER pairs with commas between, such as H100=64,B200=32")
        found[name.strip()] = _float(value, f"{flag} {name.strip()}")
    return found


def _float(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise refuse(flag, text, "a number") from None
    if not math.isfinite(value):
        raise refuse(flag, text, "a finite number")
    return value


def _plan(args: argparse.Namespace, traffic: "Traffic") -> "Plan":
    from fluidq.deployment import Deployment
    from fluidq.sizing import size
    from fluidq.units import parse

    gpu = args.gpu or "B200"
    first, second = args.prefill_gpu or gpu, args.decode_gpu or gpu
    deployment = _deployment(args, second)
    names = (deployment.gpu, deployment.gpu)
    if first.lower() != second.lower():
        other = _deployment(args, first)
        names = (other.gpu, deployment.gpu)
        deployment = Deployment.joined(other, deployment)
    prices = _prices(args, tuple(dict.fromkeys(names)))
    batch: float | None = None
    if args.batch == "max":
        batch = math.inf
    elif args.batch is not None:
        batch = float(deployment.batch)
    return size(
        deployment,
        traffic=traffic,
        gpus=whole(parse(args.gpus or "64", "gpus", "--gpus", above=0.0), "--gpus"),
        within=parse(args.within or "0.05", "1", "--within", minimum=0.0),
        **_limits(args),
        batch=batch,
        cold_start=None if args.cold_start is None else parse(args.cold_start, "seconds", "--cold-start", minimum=0.0),
        buffer=None if args.buffer is None else parse(args.buffer, "bytes", "--buffer", minimum=0.0),
        stock=None if args.stock is None else parse(args.stock, "bytes", "--stock", minimum=0.0),
        prices=None if prices is None else (prices[names[0]], prices[names[1]]),
    )


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    from fluidq.units import parse

    found: dict[str, Any] = {}
    for name, dimension in (("tpot", "seconds"), ("ttft", "seconds"), ("concurrency", "1"), ("headroom", "1")):
        if getattr(args, name) is not None:
            found[name] = parse(getattr(args, name), dimension, f"--{name}", above=0.0)
    if args.accept is not None:
        found["accept"] = parse(args.accept, "1", "--accept", minimum=1.0)
    return found


def _types(args: argparse.Namespace, out: Any, traffic: "Traffic") -> int:
    from fluidq._size_point import Service
    from fluidq._size_types import by_advantage

    fleet = [(_deployment(args, name), count) for name, count in _pairs(args.fleet, "--fleet").items()]
    limits = _limits(args)
    if args.batch != "max" and not {"tpot", "concurrency"} & set(limits):
        limits["batch"] = float(fleet[0][0].batch)
    found = by_advantage(fleet, traffic, Service.of(**limits), _prices(args, tuple(d.gpu for d, _ in fleet)))
    if out:
        write_json(out / "size.json", found.to_dict())
    show(args, found.to_dict(), lambda: str(found))
    return 0
