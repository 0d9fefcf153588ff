"""How losses fall, or do not."""

from pictures import style


def curves(losses: dict[str, list[float]], chance: float) -> None:
    """One line for each run, named where it ends, and the loss of guessing."""
    (axes,) = style.panels(1, width=4.8, height=3.0)
    dashes = ("-", "--", "-.")
    for (name, values), dash in zip(losses.items(), dashes, strict=False):
        axes.plot(range(1, len(values) + 1), values, dash, color=style.colour("right"), label=name)
    axes.axhline(chance, color=style.colour("soft"), linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, 1.2 * chance))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)


def reading(losses: list[float], floor: float) -> None:
    """One falling line, and the loss of who knows the frequencies of characters alone."""
    (axes,) = style.panels(1, width=4.8, height=2.6)
    axes.plot(range(1, len(losses) + 1), losses, color=style.colour("right"), label="reader")
    axes.axhline(floor, color=style.colour("soft"), linestyle=":", label="frequencies alone")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, 1.4 * floor))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
