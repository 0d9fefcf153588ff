from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger


def merge_attention(outputs, lses):
    merger = _SDPAMerger(convert_to_f32=False, seq_dim=2)
    for output, lse in zip(outputs, lses, strict=True):
        merger.step(output, lse, partial=False)
    return merger.results()
