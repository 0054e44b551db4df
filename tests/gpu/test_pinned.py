"""Host memory that copies to a GPU need not stage: `GpuOptions(force_gpu_compatible=True)`."""

from __future__ import annotations

import threading

import torch

from hedgerow.monolith.launch.gpu_options import GpuOptions


def test_new_host_tensors_are_pinned_in_the_thread_that_asked() -> None:
    pinned: dict[str, bool] = {}

    def work() -> None:
        pinned["before"] = torch.ones(3).is_pinned()
        GpuOptions(allow_growth=True, force_gpu_compatible=True).apply()
        pinned["after"] = torch.ones(3).is_pinned()
        pinned["tensor"] = torch.tensor([1, 2]).is_pinned()
        pinned["decided"] = torch.ones(3, pin_memory=False).is_pinned()
        pinned["cuda"] = torch.ones(3, device="cuda").is_pinned()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert pinned == {
        "before": False,
        "after": True,
        "tensor": True,
        "decided": False,
        "cuda": False,
    }
    assert not torch.ones(3).is_pinned()
