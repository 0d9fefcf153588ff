"""The numbers of an 8-bit cache, float8 decoded by its bits (as tilelang #2702 had it)."""

import torch


def e4m3(stored):
    """What eight bits mean: a sign, four bits of exponent, three of mantissa."""
    bits = stored.to(torch.int32) & 0xFF
    sign = torch.where(bits >= 128, -1.0, 1.0)
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).to(torch.float32) / 8
    normal = torch.ldexp(1 + mantissa, exponent - 7)
    return torch.where((bits & 127) == 127, torch.nan, sign * normal)


def dequantize(stored, scale, stored_as):
    if stored.dtype != torch.int8:
        raise ValueError(f"stored: wanted int8, got {stored.dtype}")
    if stored_as not in ("int8", "float8_e4m3fn"):
        raise ValueError(f"stored_as: wanted int8 or float8_e4m3fn, got {stored_as}")
    numbers = stored.to(torch.float32) if stored_as == "int8" else e4m3(stored)
    return (numbers.double() * scale[..., None].double()).to(scale.dtype)
