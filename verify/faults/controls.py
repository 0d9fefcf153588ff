"""Controls: right implementations that compute in unusual ways. Whoever judges must not accuse them."""

from typing import Any

from verify.catalogue import CATALOGUE
from verify.faults import base, base_gradients, base_layers, control

STAGED = {
    name: getattr(module, name)
    for name in CATALOGUE
    for module in (base, base_gradients, base_layers)
    if hasattr(module, name) and getattr(module, name).__module__ == module.__name__
}
for name, function in STAGED.items():

    def staged(function=function, **given: Any) -> Any:
        return function(**given)

    staged.__name__ = f"{name}_staged"
    control("layers", "the stages as they are")(staged)
