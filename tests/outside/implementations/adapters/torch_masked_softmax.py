import torch


def softmax(score, mask=None):
    if mask is not None and mask.is_floating_point():
        return torch.softmax(score + mask, -1)
    return torch.masked.softmax(score, -1, mask=mask)
