"""`fluidq calibrate`: benchmark results and Prometheus data to a deployment file, with errors."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from fluidq._atomic import write_whole
from fluidq._errors import refuse
from fluidq.commands._common import folder

HELP = "Fit rates, step times, sizes and delays to benchmark results and Prometheus data; write a deployment file."
EPILOG = (
    "example: fluidq calibrate decode.npz prefill.npz --model Llama-3.3-70B --gpu H100 --decode-worker 4 --out site"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files and what they do not say of themselves."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="benchmark results, saved Prometheus JSON, or a server: http://host:9090",
    )
    add("--model", help="model of the catalogue: its figures stand where the data tell nothing")
    add("--gpu", help="GPU of the catalogue")
    add("--prefill-worker", type=int, metavar="GPUS", help="GPUs per prefill worker")
    add("--decode-worker", type=int, metavar="GPUS", help="GPUs per decode worker")
    add("--prefill-gpus", type=float, metavar="N", help="GPUs of the prefill pool, where a file does not say")
    add("--decode-gpus", type=float, metavar="N", help="GPUs of the decode pool, where a file does not say")
    add("--accept", type=float, default=1.0, metavar="TOKENS", help="output tokens per step (default %(default)s)")
    add("--nic", metavar="RATE", help="nominal link per GPU, for its efficiency, e.g. 400Gbps")
    add("--level", type=float, default=0.95, help="of the intervals (default %(default)s)")
    add(
        "--time-unit",
        choices=("ms", "s"),
        help="of the latencies in benchmark results, where it is not the format's own",
    )
    server = parser.add_argument_group("Prometheus")
    add = server.add_argument
    add("--start", metavar="TIME", help="Unix seconds, or an ISO time with its zone; default an hour before the end")
    add("--end", metavar="TIME", help="default now")
    add("--step", default="15s", metavar="TIME", help="of the query (default %(default)s)")
    add("--window", metavar="TIME", help="of the result (default 60 s, or four steps)")
    add("--select", action="append", default=[], metavar="LABEL=VALUE", help="labels of every series; may be repeated")
    add("--prefill-pods", action="append", metavar="PATTERN", help="label values of prefill workers, e.g. '*prefill*'")
    add("--decode-pods", action="append", metavar="PATTERN", help="label values of decode workers")
    add("--metrics", metavar="FILE", help="a metric map in place of the shipped metrics.toml")
    add("--timeout", default="30s", metavar="TIME", help="of each answer of the server (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where the data determine no parameter.

    Writes `deployment.toml` and `calibrate.json` into `args.out` where given. Raises `InputError` for a file or
    address that cannot be read, a flag out of range, and data that tell nothing.
    """
    from fluidq.calibrate import calibrate
    from fluidq.units import parse

    nic = None if args.nic is None else parse(args.nic, "bytes/s", "--nic", above=0.0)
    base = _base(args, nic)
    found = calibrate(
        _tables(args),
        base=base,
        prefill_worker=args.prefill_worker,
        decode_worker=args.decode_worker,
        prefill_gpus=args.prefill_gpus,
        decode_gpus=args.decode_gpus,
        accept=args.accept,
        nic=nic,
        level=args.level,
    )
    data = {**found.to_dict(), "toml": found.to_toml()}
    said = [str(found)]
    out = folder(getattr(args, "out", None))
    if out:
        write_whole(out / "calibrate.json", json.dumps(data, indent=2, allow_nan=False) + "\n")
        write_whole(out / "deployment.toml", found.to_toml())
        said.append(f"\n{out / 'deployment.toml'} is written")
    else:
        said += ["", found.to_toml()]
    print(json.dumps(data, indent=2, allow_nan=False) if args.json else "\n".join(said).rstrip())
    return 0 if any(p.determined for p in found.parameters.values()) else 1


def _base(args: argparse.Namespace, nic: float | None) -> Any:
    from fluidq.deployment import Deployment

    if args.model is None and args.gpu is None:
        return None
    if args.model is None or args.gpu is None:
        raise refuse("--model, --gpu", (args.model, args.gpu), "given together: rates belong to a model on a GPU")
    return Deployment.preset(
        args.model,
        args.gpu,
        nic=nic,
        gpus_per_prefill_worker=args.prefill_worker,
        gpus_per_decode_worker=args.decode_worker,
    )


def _tables(args: argparse.Namespace) -> Sequence[Any]:
    """The measurements of all files; saved Prometheus responses are parts of one export and read together."""
    from fluidq.io import prometheus
    from fluidq.io.benchmarks import detect, read_benchmark
    from fluidq.units import parse

    def seconds(text: str | None, flag: str) -> float | None:
        return None if text is None else parse(text, "seconds", flag, above=0.0)

    pools = {"prefill": args.prefill_pods, "decode": args.decode_pods}
    options: dict[str, Any] = {
        "step": seconds(args.step, "--step"),
        "window": seconds(args.window, "--window"),
        "start": _moment(args.start, "--start"),
        "end": _moment(args.end, "--end"),
        "timeout": seconds(args.timeout, "--timeout"),
        "metrics": args.metrics,
        "select": dict(_label(text) for text in args.select),
        "pools": {pool: patterns for pool, patterns in pools.items() if patterns},
        "prefill_worker": args.prefill_worker,
        "decode_worker": args.decode_worker,
    }
    tables, exports = [], []
    for file in args.files:
        if "://" in file:
            tables.append(prometheus.read_prometheus(file, **options).measurements)
        elif detect(file) == prometheus.FORMAT:
            exports.append(file)
        else:
            tables.append(read_benchmark(file, time_unit=args.time_unit))
    if exports:
        tables.append(prometheus.read_prometheus(exports, **options).measurements)
    return tables


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise refuse("--select", text, "LABEL=VALUE, such as namespace=llm")
    return name, value.strip('"')


def _moment(text: str | None, flag: str) -> float | None:
    import datetime

    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise refuse(flag, text, "Unix seconds or a time like 2026-09-16T12:00:00+00:00") from None
    if moment.tzinfo is None:
        raise refuse(flag, text, f"a time with its zone, such as {text}+00:00")
    return moment.timestamp()
