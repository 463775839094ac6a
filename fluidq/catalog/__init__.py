"""Catalogue of GPUs and models: data files with a source per figure, and their loader."""

from fluidq.catalog._load import Figure as Figure
from fluidq.catalog._load import Gpu as Gpu
from fluidq.catalog._load import Model as Model
from fluidq.catalog._load import PrefillRate as PrefillRate
from fluidq.catalog._load import StepFit as StepFit
from fluidq.catalog._load import gpu as gpu
from fluidq.catalog._load import gpus as gpus
from fluidq.catalog._load import model as model
from fluidq.catalog._load import models as models

__all__ = ["Figure", "Gpu", "Model", "PrefillRate", "StepFit", "gpu", "gpus", "model", "models"]
