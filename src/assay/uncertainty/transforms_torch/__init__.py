"""Transformations of torch networks: give them an `nn.Module` (or a function that makes one), data, and get a
representation."""

from assay.uncertainty.transforms_torch.base import MLP, ResidualMLP, TorchClassifier, TorchMethod
from assay.uncertainty.transforms_torch.credal import CredalRelativeLikelihood
from assay.uncertainty.transforms_torch.deterministic import DDU, DUQ, SNGP
from assay.uncertainty.transforms_torch.evidential import EvidentialClassifier, EvidentialRegressor
from assay.uncertainty.transforms_torch.graph import GraphPosteriorNetwork
from assay.uncertainty.transforms_torch.heteroscedastic import HetNet
from assay.uncertainty.transforms_torch.laplace import LastLayerLaplace
from assay.uncertainty.transforms_torch.members import BatchEnsemble, DeepEnsemble, Masksembles, SubEnsemble
from assay.uncertainty.transforms_torch.posterior import PosteriorNetwork
from assay.uncertainty.transforms_torch.sampling import SWAG, DropConnect, MCDropout, MeanFieldNetwork

__all__ = [
    "DDU",
    "DUQ",
    "MLP",
    "SNGP",
    "SWAG",
    "BatchEnsemble",
    "CredalRelativeLikelihood",
    "DeepEnsemble",
    "DropConnect",
    "EvidentialClassifier",
    "EvidentialRegressor",
    "GraphPosteriorNetwork",
    "HetNet",
    "LastLayerLaplace",
    "MCDropout",
    "Masksembles",
    "MeanFieldNetwork",
    "PosteriorNetwork",
    "ResidualMLP",
    "SubEnsemble",
    "TorchClassifier",
    "TorchMethod",
]
