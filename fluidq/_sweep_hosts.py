"""Several processes, on one machine or on many: JAX's distributed runtime says who is who and waits for all."""

import jax

from fluidq._errors import InputError, refuse


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Enter JAX's distributed runtime, unless this process is in it already; nothing without arguments.

    Arguments: `coordinator` HOST:PORT of process 0; `processes` how many there are; `process` which this one is. On
    clusters that JAX knows (Slurm, Open MPI, Cloud TPU) the last two may be left out, and `coordinator` be "auto".

    Raises InputError for flags that do not fit together, and where JAX computed something before.
    """
    if coordinator is None:
        if processes is not None or process is not None:
            raise refuse("--coordinator", coordinator, "HOST:PORT of process 0 where --processes or --process is given")
        return
    if (processes is None) != (process is None):
        raise refuse("--processes", processes, "given together with --process")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise refuse("--process", process, f"from 0 to {processes - 1}")
    if coordinator != "auto" and not coordinator.rpartition(":")[2].isdecimal():
        raise refuse("--coordinator", coordinator, "HOST:PORT, or auto on a cluster that JAX knows")
    if jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize(None if coordinator == "auto" else coordinator, processes, process)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"--coordinator {coordinator!r}: the processes did not find each other: {reason}") from None


def place() -> tuple[int, int]:
    """Which process this is, and how many there are."""
    return jax.process_index(), jax.process_count()


def wait(name: str) -> None:
    """Until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
