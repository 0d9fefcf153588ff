"""
Which lines of the specification implement which part of its formula.

For each operation, one list of anchors for each part of the formula
(:func:`book.docstrings.formulas`), in its order; an anchor is
``"function: words of one statement"``. The statements themselves are read from the source, never
written here.
"""

ATTEND = ["attend: weights = dropout", "attend: = weights[(*batch, i)][j]"]
PRODUCTS = ["products_grad: d_query[row] ="], ["products_grad: d_key[b][j] +="]

ANCHORS: dict[str, list[list[str]]] = {
    "additive_score": [["additive_score: q =", "additive_score: k =", "additive_score: np.tanh"]],
    "scaled_dot_product_score": [["scaled_dot_product_score: np.einsum"]],
    "causal_mask": [["causal_mask: i, j =", "causal_mask: return"]],
    "visible_keys": [
        [
            "visible_keys: seen[b, i, j] =",
            "visible_keys: ahead =",
            "visible_keys: near =",
            "visible_keys: same =",
        ],
        ["visible_keys: p ="],
    ],
    "grouped_attention": [
        [
            "grouped_score: score = np.einsum",
            "grouped_score: score = np.tanh",
            "grouped_score: score = score + mask",
        ],
        ["each_head: return np.repeat"],
        ["attended: lse ="],
        ["attended: weights ="],
        ["attended: dropped =", "sum_of_seen: return np.einsum"],
    ],
    "grouped_attention_grad": [
        ["grouped_attention_grad: d_score[row][j] ="],
        ["grouped_attention_grad: delta ="],
        ["grouped_attention_grad: d_weight ="],
        ["grouped_attention_grad: d_sink[h] +="],
    ],
    "merge_attention": [["merge_attention: lse[row] ="], ["merge_attention: output[row] ="]],
    "merge_attention_grad": [
        ["merge_attention_grad: d_outputs[c][i] ="],
        ["merge_attention_grad: d_lses[c][i] ="],
    ],
    "latent_attention": [
        ["absorbed: return q", "latent_attention: return attended"],
        ["absorbed: q, k =", "grouped_score: score = np.einsum"],
    ],
    "latent_attention_grad": [
        ["latent_attention_grad: d_q, d_k, d_v"],
        ["latent_attention_grad: d_latent ="],
    ],
    "selected_attention": [
        ["selected_attention: return grouped_attention"],
        ["chosen_pairs: seen[b, heads, i"],
        ["chosen_pairs: heads = slice"],
    ],
    "selected_attention_grad": [["selected_attention_grad: return grouped_attention_grad"]],
    "packed_attention": [["packed_attention: found ="]],
    "packed_attention_grad": [
        ["packed_attention_grad: found ="],
        ["packed_attention_grad: d_sink += np.where"],
    ],
    "paged_attention": [
        ["paged_attention: key[j], value[j] ="],
        ["paged_attention: z, w ="],
        ["paged_attention: output[t], lse[t] ="],
    ],
    "dequantize": [["dequantize: y[place] ="], ["number: return sign"]],
    "rotary_embedding": [
        ["rotary_embedding: y[b, :, i, a] =", "rotary_embedding: y[b, :, i, c] ="],
        ["rotary_embedding: angle ="],
        ["rotary_embedding: f = base"],
    ],
    "rotary_embedding_grad": [
        ["rotary_embedding_grad: d_x ="],
        ["rotary_embedding_grad: by_angle =", "rotary_embedding_grad: d_frequencies[r] ="],
    ],
    "merge_masks": [
        ["merge_masks: mask = to_add", "to_add: return", "merge_masks: mask = np.where"]
    ],
    "softmax": [["softmax: e = np.exp", "softmax: weights[row][j] ="]],
    "dropout": [["dropout: return"]],
    "additive_attention": [ATTEND, ["additive_attention: return"]],
    "scaled_dot_product_attention": [ATTEND, ["scaled_dot_product_score: np.einsum"]],
    "shift_right": [["shift_right: divmod"], ["shift_right: if column"]],
    "rel_shift": [["rel_shift: divmod"], ["rel_shift: if column"]],
    "sinusoidal_positions": [
        ["sinusoidal_positions: distance =", "sinusoidal_positions: frequency ="],
        ["sinusoidal_positions: return"],
    ],
    "transformer_xl_score": [
        ["transformer_xl_score: content =", "transformer_xl_score: return"],
        ["transformer_xl_score: distance ="],
    ],
    "transformer_xl_attention": [
        ["attend_transformer_xl: return", "attend: = weights[(*batch, i)][j]"],
        ["attend_transformer_xl: score ="],
    ],
    "learned_relative_score": [
        [
            "learned_relative_score: content =",
            "learned_relative_score: position[:, :, i, j] =",
            "learned_relative_score: return",
        ],
        ["table_rows: return P"],
    ],
    "learned_relative_attention": [
        ["attend_learned_relative: return", "attend: = weights[(*batch, i)][j]"]
    ],
    "get_slopes": [["get_slopes: n =", "get_slopes: first ="], ["get_slopes: others ="]],
    "get_alibi_biases": [["get_alibi_biases: return"]],
    "alibi_attention": [
        ["alibi_attention: return", "attend: = weights[(*batch, i)][j]"],
        ["alibi_score: return"],
    ],
    "init_mems": [],
    "update_mems": [["update_mems: both =", "update_mems: return [x"]],
    "self_attention": [["self_attention: query, key, value =", "self_attention: return"]],
    "multi_head_attention": [
        ["multi_head_attention: return"],
        ["multi_head_attention: q, k, v =", "multi_head_attention: score ="],
    ],
    "multi_head_self_attention": [["multi_head_self_attention: return"]],
    "relative_multi_head_attention": [
        ["relative_multi_head_attention: return"],
        ["relative_multi_head_attention: q, k, v =", "relative_multi_head_attention: attended ="],
    ],
    "alibi_multi_head_attention": [
        ["alibi_multi_head_attention: return"],
        ["alibi_multi_head_attention: score ="],
    ],
    "transformer_xl_layer": [
        ["transformer_xl_layer: y = x", "transformer_xl_layer: normed ="],
        ["transformer_xl_layer: attended ="],
        ["transformer_xl_layer: keys =", "transformer_xl_layer: q, k, v ="],
    ],
    "transformer_xl": [
        ["transformer_xl: hids = [x]"],
        ["transformer_xl: hids.append"],
        ["transformer_xl: return"],
    ],
    "softmax_grad": [["softmax_grad: d_score[row][j] ="]],
    "dropout_grad": [["dropout_grad: return"]],
    "shift_right_grad": [["shift_right_grad: d_x[..., row, column] ="]],
    "rel_shift_grad": [["rel_shift_grad: d_x[..., row, column - 1] ="]],
    "update_mems_grad": [["update_mems_grad: d_hids ="], ["update_mems_grad: return"]],
    "additive_score_grad": [
        ["additive_score_grad: d_w_score +="],
        ["additive_score_grad: d_z ="],
        ["additive_score_grad: d_query[b][i] +="],
        ["additive_score_grad: d_w_query +="],
    ],
    "scaled_dot_product_score_grad": [
        ["scaled_dot_product_score_grad: d_query ="],
        ["scaled_dot_product_score_grad: return"],
    ],
    "transformer_xl_score_grad": [
        ["transformer_xl_score_grad: d_content =", "transformer_xl_score_grad: d_distance ="],
        ["transformer_xl_score_grad: d_key ="],
        ["transformer_xl_score_grad: d_position ="],
        ["transformer_xl_score_grad: d_u, d_v ="],
        ["transformer_xl_score_grad: d_u, d_v ="],
    ],
    "learned_relative_score_grad": [
        [
            "learned_relative_score_grad: d_content =",
            "learned_relative_score_grad: d_distance[b, h, i] +=",
        ],
        ["learned_relative_score_grad: d_key ="],
        ["learned_relative_score_grad: d_embeddings[t[i, j], h] +="],
        ["learned_relative_score_grad: d_bias[t[i, j], h] +="],
        ["learned_relative_score_grad: return"],
    ],
    "self_attention_grad": [
        ["self_attention_grad: d_x ="],
        ["self_attention_grad: d_parameters ="],
    ],
    "multi_head_attention_grad": [
        ["multi_head_attention_grad: d_attended, d_out_proj ="],
        ['linear_grad: np.einsum("...g,gf->...f"'],
        ["linear_grad: grads ="],
        ["linear_grad: grads[bias] ="],
    ],
    "relative_multi_head_attention_grad": [
        ["relative_multi_head_attention_grad: d_attended, d_out ="],
        ['linear_grad: np.einsum("...g,gf->...f"'],
        ["linear_grad: grads ="],
        ["linear_grad: grads[bias] ="],
    ],
    "alibi_multi_head_attention_grad": [
        ["alibi_multi_head_attention_grad: d_attended, d_out ="],
        ['linear_grad: np.einsum("...g,gf->...f"'],
        ["linear_grad: grads ="],
        ["linear_grad: grads[bias] ="],
    ],
    "multi_head_self_attention_grad": [["multi_head_self_attention_grad: return"]],
    "transformer_xl_layer_grad": [
        ["transformer_xl_layer_grad: return"],
        ["transformer_xl_layer_grad: d_position, d_r_net ="],
        ["transformer_xl_layer_grad: d_kv_net =", "linear_grad: grads ="],
    ],
    "transformer_xl_grad": [
        ["transformer_xl_grad: d_hidden = d_output"],
        ["transformer_xl_grad: d_hidden, _, d_weights, *_ ="],
        ["transformer_xl_grad: return"],
    ],
    "additive_attention_grad": [
        ["additive_attention_grad: d_w_score +="],
        ["additive_attention_grad: d_z ="],
        ["additive_attention_grad: d_query[b, i] +="],
        ["additive_attention_grad: d_w_query +="],
    ],
    "scaled_dot_product_attention_grad": [*PRODUCTS],
    "transformer_xl_attention_grad": [
        [
            "attend_transformer_xl_grad: d_content, d_key =",
            "attend_transformer_xl_grad: d_distance[b, h, i] +=",
        ],
        ["products_grad: d_key[b][j] +="],
        ["attend_transformer_xl_grad: d_position[h, c] +="],
        ["attend_transformer_xl_grad: return"],
        ["attend_transformer_xl_grad: return"],
    ],
    "learned_relative_attention_grad": [
        [
            "attend_learned_relative_grad: d_content, d_key =",
            "attend_learned_relative_grad: d_distance[b, h, i] +=",
        ],
        ["products_grad: d_key[b][j] +="],
        ["attend_learned_relative_grad: d_embeddings[t[i, j], h] +="],
        ["attend_learned_relative_grad: d_bias[t[i, j], h] +="],
        ["attend_learned_relative_grad: return"],
    ],
    "alibi_attention_grad": [*PRODUCTS],
}
