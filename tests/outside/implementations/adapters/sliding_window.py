import torch
from transformers.masking_utils import sliding_window_causal_mask_function


def visible_keys(B, N, M, causal=False, window=None):
    if not causal or window is None or window[0] is None:
        raise NotImplementedError("causal windows alone")
    i, j = torch.arange(M - N, M)[:, None], torch.arange(M)
    seen = sliding_window_causal_mask_function(window[0])(0, 0, i, j)
    return seen.expand(B, N, M)
