"""What the kernels of each family are given of a node, and which nodes they cannot run.

`ATTRIBUTES[operation](node)` gives the integers and floats of its step, as the kernel in
`native/` documents them; `CHECKS[operation](node)` None or the reason why not.
"""

from collections.abc import Callable, Mapping, Sequence

from umbel.graph import Tensor

from umbel_numa.operations import attention, elementwise, products

Attributes = tuple[Sequence[int], Sequence[float]]

_FAMILIES = (attention, elementwise, products)
ATTRIBUTES: Mapping[str, Callable[[Tensor], Attributes]] = {
    name: function for family in _FAMILIES for name, function in family.ATTRIBUTES.items()
}
CHECKS: Mapping[str, Callable[[Tensor], str | None]] = {
    name: function for family in _FAMILIES for name, function in family.CHECKS.items()
}
