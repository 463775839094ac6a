"""Files that are whole or as they were: written beside the target, then renamed."""

from pathlib import Path

from fluidq._errors import InputError


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text, line ends as given; an interruption leaves the old file or the new one.

    Raises InputError naming the file where it cannot be written.
    """
    write_bytes_whole(path, text.encode())


def write_bytes_whole(path: Path, data: bytes) -> None:
    """Write bytes; an interruption leaves the old file or the new one.

    Raises InputError naming the file where it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
