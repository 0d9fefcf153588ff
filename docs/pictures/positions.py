"""Sinusoidal positions."""

from numpy import ndarray

from pictures import style


def waves(positions: ndarray) -> None:
    """The whole table as an image: rows are distances, columns sines and then cosines."""
    M, F = positions.shape
    (axes,) = style.panels(1, width=4.6, height=3.4)
    image = axes.imshow(positions, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    axes.axvline(F / 2 - 0.5, color=style.colour("ink"), linewidth=1)
    axes.set(xlabel="column f: sines, then cosines", ylabel="distance")
    axes.set_yticks(range(0, M, 4), [str(M - 1 - c) for c in range(0, M, 4)])
    axes.figure.colorbar(image, ax=axes)
