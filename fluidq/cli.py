"""The `fluidq` command: text for people, `--json` for programs, files in `--out`."""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluidq._errors import InputError, refuse

DESCRIPTION = """\
How to split GPUs between prefill and decode, whether the buffer between the pools survives until new workers start,
and which autoscaling thresholds are best, found by gradient and judged on the hard law.

  fluidq tune      tune an autoscaler on a day of load (embedded, or your trace)
  fluidq size      split of a fleet between the pools, and whether the fabric carries the KV cache
  fluidq bounds    buffer and stock that survive a mix step until the resize lands
  fluidq figure    draw a figure of the article
"""


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # "-1GB/s" and "-3s" are values: argparse knows only bare negative numbers, and would take them for flags.
        self._negative_number_matcher = re.compile(r"-\.?\d.*")

    def error(self, message: str) -> Any:  # one sentence and exit code 2, not the usage dump
        self.exit(2, f"fluidq: {message} (see `{self.prog} --help`)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 1 done but the answer is no, 2 bad input."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return args.run(args)
    except InputError as error:
        print(f"fluidq: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader left: `fluidq ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"fluidq: cannot write the output: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fluidq: interrupted; files already written are whole.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fluidq", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"fluidq {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    tune = _command(commands, "tune", _tune, "Tune the thresholds and the pool ratio of an autoscaler by gradient.")
    tune.epilog = "example: fluidq tune --trace AzureLLMInferenceTrace_conv.csv --out result --json"
    tune.add_argument("--scenario", metavar="FILE", help="TOML: deployment, fleet, workload, policy, objective, tune")
    tune.add_argument("--trace", metavar="FILE", help="Azure LLM CSV or Mooncake JSON lines, plain or gzipped")
    tune.add_argument("--seed", type=int, metavar="N", help="of the embedded workload, the starts and the unseen draws")

    size = _command(commands, "size", _size, "Split a fleet between prefill and decode, and check the fabric.")
    size.epilog = "example: fluidq size --model GLM-5.2 --gpu B200 --nic 400Gbps --isl 8192 --osl 1024 --gpus 64"
    size.add_argument("--model", default="GLM-5.2", help="model of the catalogue (default %(default)s)")
    size.add_argument("--gpu", default="B200", help="GPU of the catalogue (default %(default)s)")
    size.add_argument("--isl", default="8192", metavar="TOKENS", help="mean input length (default %(default)s)")
    size.add_argument("--osl", default="1024", metavar="TOKENS", help="mean output length (default %(default)s)")
    size.add_argument("--gpus", default="64", metavar="N", help="GPUs of the fleet (default %(default)s)")
    size.add_argument("--nic", metavar="RATE", help="link per GPU and direction, e.g. 400Gbps or 50GB/s")
    size.add_argument("--fabric", metavar="RATE", help="limit of the whole fabric, e.g. 3.2Tbps")
    size.add_argument("--hit", default="0", metavar="SHARE", help="input tokens cached at prefill, 0..1 or %%")
    size.add_argument("--hit-decode", default="0", metavar="SHARE", help="input tokens cached at decode, 0..1 or %%")
    size.add_argument("--kv-per-token", metavar="SIZE", help="KV bytes per token, e.g. 47.7kB")
    size.add_argument("--prefill-rate", metavar="RATE", help="tok/s per GPU instead of the roofline")
    size.add_argument("--prefill-efficiency", metavar="SHARE", help="share of peak compute (default 1: the roofline)")
    size.add_argument("--batch", metavar="B", help="decode sequences per GPU (default 64)")
    size.add_argument("--prefill-worker", type=int, metavar="GPUS", help="GPUs per prefill worker")
    size.add_argument("--decode-worker", type=int, metavar="GPUS", help="GPUs per decode worker")

    bounds = _command(commands, "bounds", _bounds, "Least buffer and stock for mix steps, and what one step loses.")
    bounds.epilog = (
        "example: fluidq bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 88s "
        "--capacity 150GB --stock 75GB --flow 5.34GB/s --delta 2.67GB/s"
    )
    bounds.add_argument("--delta-up", required=True, metavar="RATE", help="largest surplus, per prefill GPU")
    bounds.add_argument("--delta-down", required=True, metavar="RATE", help="largest shortfall, per prefill GPU")
    bounds.add_argument("--cold-start", required=True, metavar="TIME", help="tau: detection, decision and start")
    bounds.add_argument("--capacity", metavar="SIZE", help="C, buffer per prefill GPU")
    bounds.add_argument("--stock", metavar="SIZE", help="Q0, what it holds at the step")
    bounds.add_argument("--flow", metavar="RATE", help="P, the balanced flow; needed for the loss as a share")
    bounds.add_argument("--delta", metavar="RATE", help="one step: > 0 surplus, < 0 shortfall")

    figure = _command(commands, "figure", _figure, "Draw a figure by name; without a name, list them.")
    figure.epilog = "example: fluidq figure shock-map --capacity 150GB --stock 75GB --tau-max 1800s --out figures"
    figure.add_argument("name", nargs="?", help="e.g. shock-map")
    figure.add_argument("--list", action="store_true", help="name every figure")
    figure.add_argument("--format", default="png", choices=("png", "pdf", "svg"))
    figure.add_argument("--capacity", metavar="SIZE", help="C (shock-map; default 150GB)")
    figure.add_argument("--stock", metavar="SIZE", help="Q0 (shock-map; default half of C)")
    figure.add_argument("--flow", metavar="RATE", help="P (shock-map; default 5.34GB/s)")
    figure.add_argument("--tau-max", metavar="TIME", help="largest cold start (shock-map; default 1800s)")
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
    sub = commands.add_parser(name, help=words, description=words)
    sub.set_defaults(run=run)
    sub.add_argument("--json", action="store_true", help="only JSON on standard output")
    sub.add_argument("--out", metavar="DIR", help="write JSON and figures into this folder")
    return sub


def _tune(args: argparse.Namespace) -> int:
    from fluidq.report import tune_text  # heavy imports wait until they are needed, so that --help is quick
    from fluidq.scenario import build_case, read_scenario
    from fluidq.tune import tune

    out = _folder(args.out)
    over = read_scenario(args.scenario)
    if args.trace is not None:
        over.setdefault("workload", {})["trace"] = args.trace
    if args.seed is not None:
        if not 0 <= args.seed < 2**63:
            raise refuse("--seed", args.seed, "an integer from 0 to 2^63 - 1")
        over.setdefault("workload", {})["seed"] = args.seed
        over.setdefault("tune", {})["seed"] = args.seed
    case = build_case(over, checked=True)
    result = tune(case.fleet, case.workload, case.policy, case.objective, case.settings, progress=not args.json)
    data = {**result.to_dict(), "workload": case.workload_dict(), "phi": case.phi, "notes": case.notes}
    if out:
        from fluidq.report import tune_figures

        _write_json(out / "tune.json", data)
        tune_figures(case, result, out)
    _show(args, data, lambda: tune_text(case, result, args.out))
    return 0 if data["after"]["hard"]["cost"] < data["before"]["hard"]["cost"] else 1


def _size(args: argparse.Namespace) -> int:
    from fluidq.deployment import Deployment
    from fluidq.sizing import size
    from fluidq.units import parse

    out = _folder(args.out)
    given: dict[str, Any] = {}
    if args.nic is not None:
        given["nic"] = parse(args.nic, "bytes/s", "--nic", above=0.0)
    if args.fabric is not None:
        given["fabric"] = parse(args.fabric, "bytes/s", "--fabric", above=0.0)
    if args.kv_per_token is not None:
        given["kv_bytes_per_token"] = parse(args.kv_per_token, "bytes/token", "--kv-per-token", above=0.0)
    if args.prefill_rate is not None:
        given["r_P"] = parse(args.prefill_rate, "tokens/s", "--prefill-rate", above=0.0)
    if args.prefill_efficiency is not None:
        given["prefill_efficiency"] = parse(args.prefill_efficiency, "1", "--prefill-efficiency", above=0.0)
    if args.batch is not None:
        given["batch"] = parse(args.batch, "1", "--batch", above=0.0)
    for flag, name in (("prefill_worker", "gpus_per_prefill_worker"), ("decode_worker", "gpus_per_decode_worker")):
        if getattr(args, flag) is not None:
            given[name] = getattr(args, flag)
    deployment = Deployment.preset(args.model, args.gpu, **given)
    plan = size(
        deployment,
        isl=parse(args.isl, "tokens", "--isl", minimum=0.0),
        osl=parse(args.osl, "tokens", "--osl", minimum=0.0),
        gpus=_whole(parse(args.gpus, "gpus", "--gpus", above=0.0), "--gpus"),
        hit=parse(args.hit, "1", "--hit", minimum=0.0),
        hit_decode=parse(args.hit_decode, "1", "--hit-decode", minimum=0.0),
    )
    data = plan.to_dict()
    if out:
        _write_json(out / "size.json", data)
    _show(args, data, lambda: str(plan))
    return 0


def _bounds(args: argparse.Namespace) -> int:
    from fluidq.sizing import bounds
    from fluidq.units import parse

    out = _folder(args.out)

    def given(name: str, dimension: str, minimum: float | None = 0.0) -> Any:
        text = getattr(args, name)
        return None if text is None else parse(text, dimension, f"--{name.replace('_', '-')}", minimum)

    result = bounds(
        delta_up=given("delta_up", "bytes/s"),
        delta_down=given("delta_down", "bytes/s"),
        cold_start=given("cold_start", "seconds"),
        capacity=given("capacity", "bytes"),
        stock=given("stock", "bytes"),
        flow=given("flow", "bytes/s"),
        delta=given("delta", "bytes/s", None),
    )
    data = result.to_dict()
    if out:
        _write_json(out / "bounds.json", data)
    _show(args, data, lambda: str(result))
    return 0


def _figure(args: argparse.Namespace) -> int:
    from fluidq import figures
    from fluidq.units import parse

    if args.name is None or args.list:
        listing = figures.listing()
        _show(
            args,
            listing,
            lambda: "\n".join(f"{f['name']:<14} worst error {f['worst_error']:.1e}  {f['source']}" for f in listing),
        )
        return 0
    given: dict[str, Any] = {}
    for flag, name, dimension in (
        ("capacity", "C", "bytes"),
        ("stock", "Q0", "bytes"),
        ("flow", "P", "bytes/s"),
        ("tau_max", "tau_max", "seconds"),
    ):
        if getattr(args, flag) is not None:
            given[name] = parse(getattr(args, flag), dimension, f"--{flag.replace('_', '-')}", minimum=0.0)
    folder = _folder(args.out or ".")
    assert folder is not None
    path = folder / f"{args.name}.{args.format}"
    built = figures.build(args.name, path, **given)
    _show(args, {**built, "file": str(path)}, lambda: f"{path}: worst error {built['worst_error']:.1e}")
    return 0


def _whole(value: float, flag: str) -> int:
    if value != int(value):
        raise refuse(flag, value, "a whole number of GPUs")
    return int(value)


def _folder(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {name!r} cannot be made a folder: {error.strerror}.") from None
    if not os.access(path, os.W_OK):
        raise InputError(f"--out {name!r} cannot be written to; choose a folder of yours.")
    return path


def _write_json(path: Path, data: Any) -> None:
    """Write next to the target and rename, so that an interruption leaves the old file or the new one."""
    part = path.with_suffix(".part")
    text = json.dumps(_plain(data), indent=2) + "\n"
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def _show(args: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    print(json.dumps(_plain(data), indent=2) if args.json else text())


def _plain(data: Any) -> Any:
    """JSON has no infinity: it becomes null, as a strict parser wants. A NaN is a defect and is not passed on."""
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and math.isnan(data):
        raise InputError("a result is not a number; please report the input that led to it.")
    if isinstance(data, float) and math.isinf(data):
        return None
    return data


def _version() -> str:
    from importlib.metadata import version

    return version("fluidq")


if __name__ == "__main__":
    sys.exit(main())
