"""The methods, one family a file."""

from __future__ import annotations

from assay.attribution.methods.base import Attributor, GradientAttributor
from assay.attribution.methods.datainf import DataInf
from assay.attribution.methods.ekfac import EKFAC
from assay.attribution.methods.gradient import GradCos, GradDot, TracIn, TracInLast
from assay.attribution.methods.influence import Influence
from assay.attribution.methods.relatif import RelatIF
from assay.attribution.methods.retraining import BanzhafMSR, Datamodel, DataOOB, ExactLOO
from assay.attribution.methods.similarity import KNNShapley, RepresenterPoints, Similarity
from assay.attribution.methods.simple import FromCallable, Random
from assay.attribution.methods.trak import TRAK
from assay.attribution.methods.trees import LeafKernel

METHODS: dict[str, type[Attributor]] = {
    "random": Random, "graddot": GradDot, "gradcos": GradCos, "tracin": TracIn, "tracin_last": TracInLast,
    "influence": Influence, "relatif": RelatIF, "ekfac": EKFAC, "datainf": DataInf, "trak": TRAK,
    "representer": RepresenterPoints, "similarity": Similarity, "knn_shapley": KNNShapley, "data_oob": DataOOB,
    "banzhaf": BanzhafMSR, "datamodel": Datamodel, "exact_loo": ExactLOO, "leaf_kernel": LeafKernel,
}  # fmt: skip

__all__ = [
    "EKFAC", "METHODS", "TRAK", "Attributor", "BanzhafMSR", "DataInf", "DataOOB", "Datamodel", "ExactLOO",
    "FromCallable", "GradCos", "GradDot", "GradientAttributor", "Influence", "KNNShapley", "LeafKernel", "Random",
    "RelatIF", "RepresenterPoints", "Similarity", "TracIn", "TracInLast",
]  # fmt: skip
