import torch
from performer_pytorch import FastAttention


def scaled_dot_product_attention(query, key, value):
    torch.manual_seed(0)
    return FastAttention(query.shape[-1], nb_features=256)(query, key, value)
