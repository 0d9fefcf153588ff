import torch


def dequantize(stored, scale, stored_as):
    is_float = stored_as == "float8_e4m3fn"
    numbers = stored.view(torch.float8_e4m3fn) if is_float else stored
    return numbers.to(scale.dtype) * scale[..., None]
