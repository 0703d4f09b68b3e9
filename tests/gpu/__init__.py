"""NCCL; skipped with the reason where there is no CUDA."""
