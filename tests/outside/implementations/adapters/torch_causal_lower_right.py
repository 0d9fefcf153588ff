from torch.nn.attention.bias import causal_lower_right


def causal_mask(N, M):
    return causal_lower_right(N, M)._materialize()
