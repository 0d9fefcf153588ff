"""torch.compile of eager code: the additive attention of the documents, compiled whole."""

from functools import cache

import torch

PRECISION = "eager"


def eager(query, key, value, w_query, w_key, w_score):
    q, k = (query @ w_query.T).unsqueeze(2), (key @ w_key.T).unsqueeze(1)
    return torch.softmax((torch.tanh(q + k) @ w_score[:, None]).squeeze(-1), dim=-1) @ value


@cache
def compiled():
    return torch.compile(eager, dynamic=False)


def additive_attention(query, key, value, w_query, w_key, w_score, mask=None, keep=None, p=0.0):
    if mask is not None or keep is not None:
        raise NotImplementedError("no mask and no dropout")
    return compiled()(query, key, value, w_query, w_key, w_score)
