import torch
from diffusers.models.embeddings import get_timestep_embedding


def sinusoidal_positions(M, F):
    return get_timestep_embedding(torch.arange(M - 1, -1, -1), F, downscale_freq_shift=0)
