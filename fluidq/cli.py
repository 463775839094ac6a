"""The `fluidq` command: text for people, `--json` for programs, files in `--out`."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from fluidq._errors import InputError

DESCRIPTION = """\
How to split GPUs between prefill and decode, whether the buffer between the pools survives until new workers start,
and which autoscaling thresholds are best, found by gradient and judged on the hard law.
"""

# In the order in which one meets them; each is a module of fluidq.commands.
VERBS = (
    *("init", "tune", "size", "bounds", "compare", "sweep", "sensitivity"),
    *("report", "figure", "inspect", "calibrate", "validate"),
)


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


class _Completion(argparse.Action):
    """Print a completion script for a shell: `eval "$(fluidq --completion bash)"`."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        import shtab

        print(shtab.complete(parser, rest[1]))
        parser.exit(0)


def _parser() -> argparse.ArgumentParser:
    verbs = {name: importlib.import_module(f"fluidq.commands.{name}") for name in VERBS}
    parser = _Parser(prog="fluidq", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"fluidq {_version()}")
    parser.add_argument(
        "--completion", action=_Completion, choices=("bash", "zsh", "tcsh"), help="print a completion script"
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, verb in verbs.items():
        sub = commands.add_parser(name, help=verb.HELP, description=verb.HELP, epilog=verb.EPILOG)
        sub.set_defaults(run=verb.run)
        sub.add_argument("--json", action="store_true", help="only JSON on standard output")
        sub.add_argument("--out", metavar="DIR", help="write JSON and figures into this folder")
        verb.add_arguments(sub)
    return parser


def _version() -> str:
    from importlib.metadata import version

    return version("fluidq")


if __name__ == "__main__":
    sys.exit(main())
