"""`fluidq init`: a commented scenario file to start from."""

import argparse
import json
from pathlib import Path

from fluidq._atomic import write_whole
from fluidq._errors import refuse

HELP = "Write a commented scenario file, or its JSON schema."
EPILOG = "example: fluidq init scenario.toml && fluidq tune --scenario scenario.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="where to write it; without it, to standard output")
    add("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; with `--json` the JSON schema instead. Raises InputError for a file that exists already."""
    from fluidq.scenario_keys import json_schema, template

    text = json.dumps(json_schema(), indent=2) + "\n" if args.json else template()
    name = args.file if args.file is not None or args.out is None else str(Path(args.out) / "scenario.toml")
    if name is None:
        print(text, end="")
        return 0
    path = Path(name)
    if path.exists() and not args.force:
        raise refuse("FILE", name, "a new file, or give --force to overwrite it")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    print(f"{path} written")
    return 0
