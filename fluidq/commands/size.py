"""`fluidq size`: the split of a fleet between the pools."""

import argparse
from typing import Any

from fluidq.commands._common import folder, show, whole, write_json

HELP = "Split a fleet between prefill and decode, and check the fabric."
EPILOG = "example: fluidq size --model GLM-5.2 --gpu B200 --nic 400Gbps --isl 8192 --osl 1024 --gpus 64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--model", default="GLM-5.2", help="model of the catalogue (default %(default)s)")
    add("--gpu", default="B200", help="GPU of the catalogue (default %(default)s)")
    add("--isl", default="8192", metavar="TOKENS", help="mean input length (default %(default)s)")
    add("--osl", default="1024", metavar="TOKENS", help="mean output length (default %(default)s)")
    add("--gpus", default="64", metavar="N", help="GPUs of the fleet (default %(default)s)")
    add("--nic", metavar="RATE", help="link per GPU and direction, e.g. 400Gbps or 50GB/s")
    add("--fabric", metavar="RATE", help="limit of the whole fabric, e.g. 3.2Tbps")
    add("--hit", default="0", metavar="SHARE", help="input tokens cached at prefill, 0..1 or %%")
    add("--hit-decode", default="0", metavar="SHARE", help="input tokens cached at decode, 0..1 or %%")
    add("--kv-per-token", metavar="SIZE", help="KV bytes per token, e.g. 47.7kB")
    add("--prefill-rate", metavar="RATE", help="tok/s per GPU instead of the roofline")
    add("--prefill-efficiency", metavar="SHARE", help="share of peak compute (default 1: the roofline)")
    add("--batch", metavar="B", help="decode sequences per GPU (default 64)")
    add("--prefill-worker", type=int, metavar="GPUS", help="GPUs per prefill worker")
    add("--decode-worker", type=int, metavar="GPUS", help="GPUs per decode worker")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for a flag that cannot be."""
    from fluidq.deployment import Deployment
    from fluidq.sizing import size
    from fluidq.units import parse

    out = folder(args.out)
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
        gpus=whole(parse(args.gpus, "gpus", "--gpus", above=0.0), "--gpus"),
        hit=parse(args.hit, "1", "--hit", minimum=0.0),
        hit_decode=parse(args.hit_decode, "1", "--hit-decode", minimum=0.0),
    )
    data = plan.to_dict()
    if out:
        write_json(out / "size.json", data)
    show(args, data, lambda: str(plan))
    return 0
