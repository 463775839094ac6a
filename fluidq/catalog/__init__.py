"""Catalogue of GPUs, models and links: data files with a source per figure, their loader, and the user's own over it.

>>> gpu("B200").hbm.value, link("ConnectX-7").rate.value, model("Qwen3-32B").kv[0].value
(192000000000.0, 50000000000.0, 262144.0)
"""

from fluidq.catalog._entries import Figure as Figure
from fluidq.catalog._entries import Gpu as Gpu
from fluidq.catalog._entries import Link as Link
from fluidq.catalog._entries import Model as Model
from fluidq.catalog._entries import PrefillRate as PrefillRate
from fluidq.catalog._entries import StepFit as StepFit
from fluidq.catalog._entries import Transfer as Transfer
from fluidq.catalog._load import Catalog as Catalog
from fluidq.catalog._load import gpu as gpu
from fluidq.catalog._load import gpus as gpus
from fluidq.catalog._load import link as link
from fluidq.catalog._load import links as links
from fluidq.catalog._load import load as load
from fluidq.catalog._load import model as model
from fluidq.catalog._load import models as models
from fluidq.catalog._load import transfers as transfers

__all__ = [
    "Catalog",
    "Figure",
    "Gpu",
    "Link",
    "Model",
    "PrefillRate",
    "StepFit",
    "Transfer",
    "gpu",
    "gpus",
    "link",
    "links",
    "load",
    "model",
    "models",
    "transfers",
]
