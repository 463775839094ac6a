"""A sweep's folder: one Parquet file per chunk, each whole or absent, and a manifest of what they are.

A part carries the design it belongs to and a digest of its values, so that a part of another design, a truncated one
and one with a flipped bit are all found.
"""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidq._atomic import write_whole
from fluidq._errors import InputError, refuse

if TYPE_CHECKING:
    import polars

# Readers of Parquet folders pass over names that begin with an underscore.
MANIFEST = "_manifest.json"
FORM = 1


def part_name(chunk: int) -> str:
    """The file of a chunk."""
    return f"part-{chunk:06d}.parquet"


def open_folder(folder: Path, manifest: dict[str, Any], write: bool) -> None:
    """Make the folder this sweep's: write its manifest, or find the same one there.

    Raises InputError where the folder holds a sweep of another design, or one by other versions, naming what differs.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(folder)!r} cannot be made a folder: {error.strerror}.") from None
    if write:
        for left in folder.glob(".part-*.part"):  # of a process that was killed
            left.unlink(missing_ok=True)
    old = _manifest(folder)
    if old is None:
        if any(folder.glob("part-*.parquet")) and not (folder / MANIFEST).exists():
            raise refuse("--out", str(folder), "a new folder: this one holds parts without a manifest")
        if write:
            write_whole(folder / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        return
    for key, words in (
        ("design", "another design"),
        ("blocks", "another block or chunk size"),
        ("made_by", "other versions"),
    ):
        if old.get(key) != manifest[key]:
            what = ", ".join(_differing(old.get(key), manifest[key]))
            raise refuse("--out", str(folder), f"a new folder: this one holds a sweep of {words} (different: {what})")


def _manifest(folder: Path) -> dict[str, Any] | None:
    """None where it is absent or damaged: the parts say themselves to what design they belong."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _differing(old: Any, new: Any) -> list[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return ["all"]
    out = []
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            both = isinstance(old.get(key), dict) and isinstance(new.get(key), dict)
            out += [f"{key}.{name}" for name in _differing(old[key], new[key])] if both else [key]
    return out


def write_part(folder: Path, chunk: int, design: str, table: "polars.DataFrame") -> None:
    """Write a chunk, whole or not at all. Raises InputError naming the file where it cannot be written."""
    buffer = io.BytesIO()
    said = json.dumps({"design": design, "chunk": chunk, "digest": digest(table)}, sort_keys=True)
    table.write_parquet(buffer, metadata={"fluidq": said})
    path = folder / part_name(chunk)
    part = folder / f".{path.name}.{os.getpid()}.part"
    try:
        with part.open("wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def read_part(folder: Path, chunk: int, design: str) -> Any:
    """The chunk, None where it is absent, or why it cannot be used.

    Raises InputError for a part of another design.
    """
    import polars as pl

    path = folder / part_name(chunk)
    if not path.exists():
        return None
    try:
        said = json.loads(pl.read_parquet_metadata(path)["fluidq"])
        table = pl.read_parquet(path, glob=False)
    except Exception as error:  # a damaged file fails in as many ways as there are bytes
        return f"it cannot be read ({type(error).__name__})"
    if said.get("design") != design or said.get("chunk") != chunk:
        raise refuse("--out", str(folder), f"a new folder: {path.name} belongs to another design")
    return table if said.get("digest") == digest(table) else "its values are not those that were written"


def digest(table: "polars.DataFrame") -> str:
    """SHA-256 of names, types and values."""
    sha = hashlib.sha256()
    for name in table.columns:
        column = table[name]
        sha.update(f"{name}:{column.dtype}:{len(column)};".encode())
        if column.dtype.is_numeric():
            sha.update(np.packbits(column.is_null().to_numpy()).tobytes())
            sha.update(np.ascontiguousarray(column.fill_null(0).to_numpy()).tobytes())
        else:
            sha.update(json.dumps(column.to_list()).encode())
    return sha.hexdigest()


def read_sweep(folder: str | Path, *, partial: bool = False) -> "polars.DataFrame":
    """The table of a sweep's folder, one row per run, in the order of the design.

    Arguments:
        folder: what `--out` named. partial: take what is there of an unfinished sweep.

    Raises InputError where the folder is no sweep's, where chunks are missing (unless `partial`) and where one is
    damaged; running the sweep again computes those.
    """
    import polars as pl

    folder = Path(folder)
    manifest = _manifest(folder)
    if manifest is None or not {"chunks", "fingerprint"} <= manifest.keys():
        raise refuse("the folder", str(folder), f"one of `fluidq sweep --out`, with a readable {MANIFEST}")
    tables, missing = [], []
    for chunk in range(manifest["chunks"]):
        part = read_part(folder, chunk, manifest["fingerprint"])
        if isinstance(part, str):
            raise InputError(
                f"{folder / part_name(chunk)} is damaged: {part}; run the sweep again, it redoes that part."
            )
        (missing if part is None else tables).append(chunk if part is None else part)
    if not tables or (missing and not partial):
        first = part_name(missing[0])
        raise InputError(
            f"{folder} lacks {len(missing)} of {manifest['chunks']} chunks, {first} first: "
            "run the same sweep again to finish it, put the parts of other hosts here, or read it with partial=True."
        )
    return pl.concat(tables).sort("row")
