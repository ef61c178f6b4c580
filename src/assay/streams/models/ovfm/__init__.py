"""OVFM: a Gaussian copula completes each row, and two FTRL learners see the row with zeros and the completed row.

He, Dong, Hou, Wang and Wang, "Online Learning in Variable Feature Spaces with Mixed Data" (ICDM 2021); the copula is
updated online as in Zhao, Landgrebe, Shekhtman and Udell, "Online Missing Value Imputation and Change Point Detection
with the Gaussian Copula" (AAAI 2022).
"""

from assay.streams.models.ovfm.model import BEST_SETTINGS, OVFM

__all__ = ["BEST_SETTINGS", "OVFM"]
