"""The state of a search on disk: whole or absent, checked by a digest, with the one before it kept."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from fluidq._atomic import write_bytes_whole
from fluidq._errors import InputError

MAGIC = b"fluidq search 1\n"


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one lies."""
    return path.with_name(path.name + ".previous")


def save(path: Path, design: str, arrays: dict[str, np.ndarray], plain: dict[str, Any]) -> None:
    """Write the state; what was there becomes the previous one. An interruption loses neither.

    Arguments:
        design: digest of what is searched; `load` refuses another. arrays, plain: the state, `plain` fit for JSON.
    """
    buffer = io.BytesIO()
    whole: dict[str, Any] = {
        **arrays,
        "__plain__": np.frombuffer(json.dumps({"design": design, **plain}).encode(), np.uint8),
    }
    np.savez(buffer, **whole)
    payload = buffer.getvalue()
    if path.exists():
        write_bytes_whole(previous(path), path.read_bytes())
    write_bytes_whole(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def load(path: Path, design: str) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
    """Arrays, the rest, and what was found wrong on the way: a damaged file is reported and the previous one used.

    Raises InputError where neither can be read, and for the state of another search.
    """
    notes: list[str] = []
    for candidate in (path, previous(path)):
        if not candidate.exists():
            notes.append(f"{candidate} does not exist")
            continue
        got = _read(candidate)
        if got is None:
            notes.append(f"{candidate} is damaged (its digest does not match); it is not used")
            continue
        arrays, plain = got
        if plain.pop("design") != design:
            raise InputError(
                f"checkpoint {str(candidate)!r} belongs to another search: policy, workload, objective or settings "
                "differ. Give those again, or another file."
            )
        return arrays, plain, notes
    raise InputError(f"checkpoint {str(path)!r} cannot be resumed: {'; '.join(notes)}.")


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    raw = path.read_bytes()
    head, payload = raw[: len(MAGIC) + 65], raw[len(MAGIC) + 65 :]
    if head != MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n":
        return None
    with np.load(io.BytesIO(payload)) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(arrays.pop("__plain__").tobytes())
