"""One file an objective, each the paper's algorithm from top to bottom: no trainer, no registry, no buffers.

They are for reading and for changing; `GFlowNet` does the same with early exit, replay, checkpoints and the rest. Each
has a pure function ``loss``, a function ``train(Settings(...))`` that compares with the exact distribution, and runs as
``python -m assay.gflownets.recipes.tb`` (``vargrad``, ``subtb``, ``db``, ``fm``, ``fldb``, ``mdb``, ``soft_dqn``).
"""
