"""Sums over public request traces, counted once from the released files; the tests count them again."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp


@dataclass(frozen=True)
class Trace:
    """Requests, sums of lengths and of their products, medians; where prefix blocks are listed, those seen before."""

    requests: int
    isl: int
    osl: int
    isl_sq: int
    osl_sq: int
    isl_osl: int
    median_isl: int
    median_osl: int
    blocks: int = 1
    blocks_seen: int = 0

    def mean(self, name: str) -> Any:
        """The mean over the requests of one of the sums, exact."""
        return sp.Rational(getattr(self, name), self.requests)

    @property
    def moments(self) -> dict[str, Any]:
        """All means by code name, as inputs of a formula."""
        return {name: self.mean(name) for name in ("isl", "osl", "isl_sq", "osl_sq", "isl_osl")}

    @property
    def hit(self) -> Fraction:
        """Share of the prefix blocks that an infinite cache has seen before."""
        return Fraction(self.blocks_seen, self.blocks)


AZURE_CODE = Trace(8819, 18_059_974, 245_896, 71_340_703_604, 38_455_408, 504_758_521, 1469, 13)
AZURE_CONV = Trace(19366, 22_361_870, 4_088_665, 49_630_218_364, 1_376_914_593, 4_328_248_818, 1020, 129)
MOONCAKE_CONV = Trace(
    12031, 144_793_823, 4_122_048, 4_746_152_488_541, 2_163_675_940, 53_023_744_326, 6909, 350, 288_500, 105_710
)
MOONCAKE_SYNTHETIC = Trace(
    3993, 61_194_628, 595_432, 2_286_792_246_222, 215_515_928, 4_234_096_733, 11587, 69, 121_877, 77_953
)

# Seconds that one machine of 8 H100 takes to prefill a request of BLOOM-176B, mean over the Azure trace: each length
# interpolated in the medians of SplitwiseSim's perf_model.csv (batch 1, output 128).
SPLITWISE_PREFILL = {"code": sp.Rational("0.3271972"), "conv": sp.Rational("0.1719302")}

MOMENTS = "computed from the released trace"
DAY6 = "DeepSeek, open-infra-index day 6 (2025-02)"
