"""Bounds for the backward pass of the position-wise feed-forward."""

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounding_error, start_error
from attnverify.bounds.feed_forward import FeedForward, relu_gradient
from attnverify.bounds.gradients.heads import Pair, parameter_gradients
from attnverify.bounds.gradients.layer_norm import layer_norm_gradient
from attnverify.bounds.layers import Parameters
from attnverify.precision import Precision


def feed_forward_gradient(
    forward: FeedForward, d_output: Pair, parameters: Parameters, eps: float, P: Precision
) -> tuple[Pair, dict[str, ndarray]]:
    """
    Compute dx = dz + da W_1 with its error, kept in `stage`, and the errors of the gradients of the
    parameters, stored: `layer_norm_gradient`, the second map, `relu_gradient`, the first map, whose
    sum may begin with dz.
    """
    gain, bias = parameters["ff_norm.weight"], parameters.get("ff_norm.bias")
    dz, found = layer_norm_gradient(d_output, *forward.z, gain, bias, eps, P, "ff_norm")
    (r, E_r), (x, E) = forward.r, forward.given
    E_dr, grads = parameter_gradients("ff_out", forward.net["ff_out"], dz, r, P, E_r)
    da = relu_gradient(dz[0] @ forward.net["ff_out"][0], E_dr, *forward.a)
    terms, net = r.shape[-1] + 1, forward.net["ff_in"]
    E_dx, more = parameter_gradients("ff_in", net, da, x, P, E, terms)
    dx = dz[0] + da[0] @ net[0]
    E_dx = E_dx + dz[1] + start_error(np.abs(dz[0]) + dz[1], terms, P)
    return (dx, rounding_error(dx, E_dx, P.stage)), found | grads | more
