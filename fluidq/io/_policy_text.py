"""The text of a policy file: YAML, JSON or TOML to plain documents and back, bounded in size, depth and expansion."""

import json
import os
import re
import tomllib
from typing import Any

from fluidq._errors import InputError
from fluidq.io._files import BadJson, PathLike, loads, open_bytes, open_text

MOST_BYTES = 1 << 20  # a policy is a page of text
MOST_NODES = 20_000  # values, after every alias is expanded
DEPTH = 32
_TOML = re.compile(r"\s*(\[[\w.\"-]+\]|[\w.\"-]+\s*=(?!=))")


def load(path: PathLike) -> tuple[str, str, list[Any]]:
    """Kind of text ("yaml", "json" or "toml"), the text, and its documents.

    Raises InputError naming the file (and the line, where there is one): not readable, not UTF-8, too large, nested
    too deeply, a key twice, an alias that refers to itself or expands past `MOST_NODES` values.
    """
    file = os.fsdecode(path)
    text = open_text(path, limit=MOST_BYTES)
    if not text.strip():
        raise InputError(f"{file} is empty; it must hold a policy as YAML, JSON or TOML.")
    kind = _kind(text)
    if kind == "json":
        try:
            documents = [loads(text, depth=DEPTH)]
        except BadJson as bad:
            where = f", line {bad.line}" if bad.line else ""
            raise InputError(f"{file}{where}: {bad}") from None
    elif kind == "toml":
        documents = [_toml(file, text)]
    else:
        documents = [d for d in _yaml(file, text) if d is not None]
    if not documents:
        raise InputError(f"{file} holds no document; it must hold a policy as YAML, JSON or TOML.")
    text = open_bytes(path, limit=MOST_BYTES).decode("utf-8")  # to the byte, with its line ends
    return kind, text, [_unshared(file, d, [0], 0) for d in documents]


def dump(kind: str, documents: list[Any]) -> str:
    """The text of the documents; JSON and TOML hold one."""
    if kind == "yaml":
        yaml = _module()
        return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)
    if len(documents) != 1:
        raise InputError(f"{kind.upper()} holds one document and there are {len(documents)}; write YAML.")
    if kind == "json":
        return json.dumps(documents[0], indent=2, default=str) + "\n"
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in documents[0].items())


def parse_yaml(name: str, text: str) -> Any:
    """The one document of a YAML text inside another file; raises InputError with `name`."""
    documents = _yaml(name, text)
    if len(documents) != 1:
        raise InputError(f"{name} holds {len(documents)} YAML documents; it must hold one.")
    return _unshared(name, documents[0], [0], 0)


def _kind(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if first.startswith(("{", "[")) and not _TOML.match(first):
        return "json"
    return "toml" if _TOML.match(first) else "yaml"


def _toml(file: str, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not TOML: {error}.") from None


def _module() -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError("YAML needs the package PyYAML: pip install pyyaml.") from None
    return yaml


def _yaml(file: str, text: str) -> list[Any]:
    yaml = _module()

    class Loader(yaml.SafeLoader):
        """Names each key once, as Kubernetes' strict decoding does."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key.value, str)]
            twice = (
                next((key for key in keys if keys.count(key) > 1 and key != "<<"), None) if len(keys) < 2000 else None
            )
            if twice is not None:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {twice!r} is given twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    try:
        depth = 0
        for count, event in enumerate(yaml.parse(text, Loader=Loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                line = event.start_mark.line + 1
                raise InputError(f"{file}, line {line}: nested over {DEPTH} levels deep; no policy is.")
            if count > 3 * MOST_NODES:
                raise InputError(f"{file} holds over {MOST_NODES:,} values; no policy does.")
        return list(yaml.load_all(text, Loader=Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        words = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{file}{where} is not YAML: {words}.") from None
    except RecursionError:
        raise InputError(f"{file} is nested over {DEPTH} levels deep; no policy is.") from None
    except (ValueError, OverflowError, TypeError) as error:  # a date such as 2024-99-99, a list as a key
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} is not usable YAML: {error}.") from None


def _unshared(file: str, value: Any, count: list[int], depth: int) -> Any:
    """The value with every alias expanded, so that a change in one place is a change in one place."""
    count[0] += 1
    if count[0] > MOST_NODES or depth > DEPTH:
        raise InputError(
            f"{file} expands to over {MOST_NODES:,} values or {DEPTH} levels by its aliases: refused as an alias bomb."
        )
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            raise InputError(f"{file}: the key {odd!r} is no text; put it in quotes.")
        return {key: _unshared(file, v, count, depth + 1) for key, v in value.items()}
    if isinstance(value, list):
        return [_unshared(file, v, count, depth + 1) for v in value]
    return value
