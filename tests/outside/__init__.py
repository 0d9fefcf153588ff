"""Operations from outside of the catalogue: specifications, kernels, legal evaluations."""
