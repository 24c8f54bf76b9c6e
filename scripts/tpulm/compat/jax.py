"""What is used of JAX 0.10.2 beyond its documented interface. Needs tpulm.training.runtime.start first."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.interpreters import ad


@contextlib.contextmanager
def in_order(platform: str) -> Iterator[None]:
    """Trace gradients of the second operands of products without transposed copies, on a CPU, within the context.

    Why: of x @ w, JAX computes the gradient of w as the product of g and x and then transposes it. XLA for CPUs turns
    that into a transposed copy of g, the largest array there is, and a product in an order that its fast kernels do not
    have: a sixth of the step of a small model. A transposition after the product, as of a table of embeddings that is
    read in reverse, it would fold into it with the same effect, a tenth of the step: a barrier keeps the two apart
    where the product is larger than x, as that of such a table is; small ones are faster without. Compilers for TPUs
    and GPUs choose the order themselves; their programs stay as they are.
    Until: XLA for CPUs leaves the transposition where it is.
    """
    if platform != "cpu":
        yield
        return
    first, second = ad.primitive_transposes[lax.dot_general_p].args
    ad.defbilinear(lax.dot_general_p, first, partial(_of_second, second))
    try:
        yield
    finally:
        ad.defbilinear(lax.dot_general_p, first, second)


def _of_second(
    plain: Any, gradient: jax.Array, first: jax.Array, second: Any, *, dimension_numbers: tuple, **more: Any
) -> jax.Array:
    """Return the gradient of a product's second operand: as JAX's own rule `plain`, unless no transposition is left."""
    (of_first, of_both), (batch, own_batch) = dimension_numbers
    axes = [*own_batch, *(both for _, both in sorted(zip(of_first, of_both, strict=True)))]
    kept = [axis for axis in range(first.ndim) if axis not in (*of_first, *batch)]
    if not _in_front(axes) or second.aval.dtype != gradient.dtype:
        return plain(gradient, first, second, dimension_numbers=dimension_numbers, **more)
    count = len(batch)
    contracted = (tuple(kept), tuple(range(count, count + len(kept))))
    precision = {key: more[key] for key in ("precision", "preferred_element_type")}
    product = lax.dot_general(first, gradient, (contracted, (tuple(batch), tuple(range(count)))), **precision)
    return lax.optimization_barrier(product) if product.size > first.size else product


def _in_front(axes: Sequence[int]) -> bool:
    """Return whether these are the first axes of an array, in their order."""
    return list(axes) == list(range(len(axes)))
