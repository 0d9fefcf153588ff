"""An 8-bit cache by way of half precision's bits (as mlx #4376 had it)."""

import torch


def from_fp8(bits):
    """E4M3 in the bits of float16, whose exponent counts from 8 more."""
    v = bits & 127
    half = (v << 7) | (((v + 1) >> 7) << 14)
    half = half | ((bits & 128) << 8)
    half = torch.where(half >= 1 << 15, half - (1 << 16), half).to(torch.int16)
    return half.view(torch.float16).to(torch.float32) * 256


def dequantize(stored, scale, stored_as):
    if stored.dtype != torch.int8:
        raise ValueError(f"stored: wanted int8, got {stored.dtype}")
    if stored_as not in ("int8", "float8_e4m3fn"):
        raise ValueError(f"stored_as: wanted int8 or float8_e4m3fn, got {stored_as}")
    bits = stored.to(torch.int32)
    numbers = bits.to(torch.float32) if stored_as == "int8" else from_fp8(bits & 255)
    return (numbers.double() * scale[..., None].double()).to(scale.dtype)
