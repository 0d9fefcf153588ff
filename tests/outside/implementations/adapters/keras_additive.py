import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch  # noqa: F401


def additive_score(query, key, w_query, w_key, w_score):
    layer = keras.layers.AdditiveAttention()
    layer.scale = w_score
    return layer._calculate_scores(query @ w_query.T, key @ w_key.T)
