"""Take out of a recorded list of tensor operations what changes no bit of its results.

TorchScript's interpreter takes about two microseconds for each operation besides its work, half of the time of an
update of a small network. Losses and autograd write many that do nothing for one shape: a view and its inverse, a
gradient of ones that is the same in each update, a computation that two networks share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
# Aliases with the first element of their input as their own.
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
    aten.unsqueeze.default, aten.expand.default, aten.t.default, aten.transpose.int, aten.permute.default,
    aten.alias.default, aten.detach.default,
}  # fmt: skip
# Operations whose result depends on the shapes of tensors alone.
FACTORIES = {
    aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_full.default, aten.zeros.default, aten.ones.default, aten.full.default,
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
}  # fmt: skip


def simplify(recorded: GraphModule) -> None:
    """Take out of a recording by `make_fx` what its results do not need; the bits of its results stay.

    Views that end where they began, equal calls on the same tensors, and what is the same in every call, which becomes
    a buffer of `recorded`. Calls that draw random numbers stay, and so do all that are connected with a tensor that is
    written in place.
    """
    _restore_linear(recorded)
    _drop_views(recorded)
    written = _written(recorded)
    _share_equal_calls(recorded, written)
    _fold_constants(recorded, written)
    recorded.graph.eliminate_dead_code()


def _restore_linear(recorded: GraphModule) -> None:
    """Make linear layers of sums of a bias and a product.

    TorchScript would split the sum into a product and a sum, which is slower and rounds twice.
    """
    for node in recorded.graph.nodes:
        if node.target is aten.addmm.default and node.args[2].target is aten.t.default:
            bias, x, weight = node.args[0], node.args[1], node.args[2].args[0]
            node.target, node.args = aten.linear.default, (x, weight, bias)


def _drop_views(recorded: GraphModule) -> None:
    """Replace a view of a view by the first tensor, where it has the layout of that one.

    A sum that keeps its axes for a view that removes them removes them itself.
    """
    for node in list(recorded.graph.nodes):
        if node.target not in VIEWS:
            continue
        origin = node.args[0]
        if origin.target is aten.sum.dim_IntList and origin.args[2:3] == (True,) and len(origin.users) == 1:
            removed = [size for i, size in enumerate(_layout(origin)[0]) if i not in _axes(origin)]
            if list(_layout(node)[0]) == removed:
                origin.args, origin.meta = (*origin.args[:2], False, *origin.args[3:]), dict(node.meta)
        while origin.target in VIEWS and _layout(origin) != _layout(node):
            origin = origin.args[0]
        if _layout(origin) == _layout(node):
            node.replace_all_uses_with(origin)
            recorded.graph.erase_node(node)


def _layout(node: Node) -> tuple[Any, ...]:
    """Shape, strides and type of a tensor; those of a constant are not known."""
    meta = node.meta.get("tensor_meta")
    return (node,) if meta is None else (meta.shape, meta.stride, meta.dtype)


def _axes(sum_of: Node) -> set[int]:
    """The axes that a sum is over, counted from the first."""
    axes: Any = sum_of.args[1]
    return {axis % len(_layout(sum_of)[0]) for axis in axes}


def _written(recorded: GraphModule) -> set[Node]:
    """Calls that write tensors in place, these tensors, and all that is computed of them or that they come from."""
    written: set[Node] = set()
    for node in reversed(recorded.graph.nodes):
        if node in written:
            written.update(node.all_input_nodes)
        elif node.op == "call_function" and node.is_impure():
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.update(value if isinstance(value, list) else [value])
    for node in recorded.graph.nodes:
        if written.intersection(node.all_input_nodes):
            written.add(node)
    return written


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _share_equal_calls(recorded: GraphModule, written: set[Node]) -> None:
    """Merge equal calls on the same tensors, as the scaling of frames that two networks use."""
    first: dict[tuple, Node] = {}
    for node in list(recorded.graph.nodes):
        if node.op != "call_function" or node in written or _is_random(node):
            continue
        same = first.setdefault(
            (node.target, repr(node.args), repr(node.kwargs)), node
        )  # as text 1, 1.0 and True differ
        if same is not node:
            node.replace_all_uses_with(same)
            recorded.graph.erase_node(node)


def _fold_constants(recorded: GraphModule, written: set[Node]) -> None:
    """Compute what depends on shapes alone, once."""
    graph = recorded.graph
    values: dict[Node, Tensor] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "get_attr":
                values[node] = getattr(recorded, str(node.target))
            elif node.op == "call_function" and not (node in written or _is_random(node)):
                inputs = node.all_input_nodes
                if node.target in FACTORIES or (inputs and all(one in values for one in inputs)):
                    value = node.target(
                        *map_arg(node.args, lambda one: _example(one, values)),
                        **map_arg(node.kwargs, lambda one: _example(one, values)),
                    )
                    if isinstance(value, Tensor):
                        values[node] = value
    returned = set(graph.output_node().all_input_nodes)  # they belong to the caller
    for node in reversed(values):
        if node in returned:
            returned.update(node.all_input_nodes)
    for node in list(values):
        if node.op == "get_attr" or node in returned or all(user in values for user in node.users):
            continue
        name = f"_constant{len(list(recorded.buffers(recurse=False)))}"
        recorded.register_buffer(name, values[node].clone(memory_format=torch.preserve_format))
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)


def _example(node: Node, values: dict[Node, Tensor]) -> Tensor:
    """The value of a constant, or a tensor of the node's layout for an operation that looks at nothing else."""
    if node in values:
        return values[node]
    shape, strides, dtype = _layout(node)
    return torch.empty_strided(shape, strides, dtype=dtype, device=node.meta["val"].device)
