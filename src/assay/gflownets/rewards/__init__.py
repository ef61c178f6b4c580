"""Rewards, apart from the environments: what a state is worth, not how it is built."""

from assay.gflownets.rewards.callback import HostReward
from assay.gflownets.rewards.dag import bde_table, bge_table, linear_gaussian_table
from assay.gflownets.rewards.grid import GridReward
from assay.gflownets.rewards.proxy import KmerProxy
from assay.gflownets.rewards.sequence import BitModes, TokenTable

__all__ = [
    "BitModes",
    "GridReward",
    "HostReward",
    "KmerProxy",
    "TokenTable",
    "bde_table",
    "bge_table",
    "linear_gaussian_table",
]
