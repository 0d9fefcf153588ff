from torch.nn.attention.bias import causal_upper_left


def causal_mask(N, M):
    return causal_upper_left(N, M)._materialize()
