"""The systems that two pools are compared with, each a plant that `fluidq.simulate` runs under any policy.

`Temporal` (D21), `Chunked` (D23) and `Partitioned` (D23: Bullet, DuetServe, green contexts) prefill and decode on the
same GPUs; `Windowed` (D25: NIXL, Mooncake) and `AttentionFFN` (D28) are two pools with something added. Each is made
from a plant, so that the same hardware and engine are compared: `Temporal.of(plant)`.

>>> from fluidq.plant import Plant
>>> plant = Plant(1e4, 64.0, 0.02, 1e-4, 8e-9, 95e3, 20e9, 5e10, 5e10, float("inf"), 1.0, 1.0)
>>> split = Partitioned.of(plant, saturation=0.4, share=green_context(0.5))
>>> round(float(split.share), 3)
0.545
"""

from fluidq.topologies.afd import AttentionFFN as AttentionFFN
from fluidq.topologies.chunked import Chunked as Chunked
from fluidq.topologies.partitioned import Partitioned as Partitioned
from fluidq.topologies.partitioned import green_context as green_context
from fluidq.topologies.temporal import Temporal as Temporal
from fluidq.topologies.windows import Windowed as Windowed
from fluidq.topologies.windows import Windows as Windows
from fluidq.topologies.windows import reserve as reserve
from fluidq.topologies.windows import windows as windows

__all__ = [
    "AttentionFFN",
    "Chunked",
    "Partitioned",
    "Temporal",
    "Windowed",
    "Windows",
    "green_context",
    "reserve",
    "windows",
]
