"""The NVIDIA devices of this machine, as far as that is known without loading anything."""

from __future__ import annotations

import glob

__all__ = ["find_cuda_devices"]


def find_cuda_devices(folder: str = "/dev") -> tuple[bool, str]:
    """Tell whether there is a device that CUDA may use, and a sentence about that.

    By what the driver has put into `folder`, which nodes share. Whether the torch of a job was
    built for CUDA is known to its workers only.
    """
    found = sorted(glob.glob(f"{folder}/nvidia[0-9]*"))
    if found:
        return True, f"by {', '.join(found)}; the job's torch must have been built for CUDA"
    return False, f"there is no NVIDIA device ({folder}/nvidia0)"
