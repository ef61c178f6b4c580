"""Neural cognitive diagnosis models. They need torch."""

from assay.diagnosis.neural.dina import GradientDINA
from assay.diagnosis.neural.hierarchical import HierCDF
from assay.diagnosis.neural.inductive import IDCDF
from assay.diagnosis.neural.latent import KSCD, KaNCD
from assay.diagnosis.neural.ncdm import CDMFKC, NCDM

__all__ = ["CDMFKC", "IDCDF", "KSCD", "NCDM", "GradientDINA", "HierCDF", "KaNCD"]
