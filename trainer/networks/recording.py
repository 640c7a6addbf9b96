"""Record a function of tensors, with its backward pass, as a list of tensor operations.

PyTorch's tracer `make_fx` records the operations of the dispatcher, forward and backward, without Python, autograd or
TensorDict. TorchScript's interpreter runs the list some microseconds faster for each operation than Python.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from trainer.networks.scripting import script


def record(gradients: Callable, example: list[Tensor], execution: str) -> Callable:
    """Record `gradients` on copies of `example` and return what runs the recording.

    Args:
        gradients: from `make_gradients`.
        example: its arguments.
        execution: `trace` or `compile`.
    """
    recorded = make_fx(gradients, tracing_mode="real")(*[t.clone() for t in example])
    graph = recorded.graph
    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.target is aten.detach.default:  # without autograd a detach is an alias
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is aten.t.default and getattr(node.args[0], "target", None) is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.addmm.default and node.args[2].target is aten.t.default:
            # Restore the linear layer: TorchScript would split it into a product and a sum, which is slower and rounds
            # twice.
            bias, x, weight = node.args[0], node.args[1], node.args[2].args[0]
            node.target, node.args = aten.linear.default, (x, weight, bias)
    _share_equal_calls(graph)
    graph.eliminate_dead_code()
    if execution == "trace":
        _script_masked_calls(graph)
    graph.set_codegen(CodeGen())
    recorded.recompile()
    with torch.no_grad():
        if execution == "compile":
            return torch.compile(recorded, fullgraph=True, dynamic=False)
        scripted = script(recorded, [t.clone() for t in example])
        # The calls of `_script_masked_calls` are pointers to functions that end with `recorded`: put their bodies in.
        torch._C._jit_pass_inline(scripted.graph)
        return scripted


def _share_equal_calls(graph: Graph) -> None:
    """Merge equal calls on the same tensors, as the scaling of frames that two networks use.

    Calls that draw random numbers stay, and so do all calls connected with a tensor that is written in place.
    """
    written: set[Node] = set()  # these tensors and all their inputs; below, also what is computed from them
    for node in reversed(graph.nodes):
        if node in written:
            written.update(node.all_input_nodes)
        elif node.op == "call_function" and node.is_impure():
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.update(value if isinstance(value, list) else [value])
    first: dict[tuple, Node] = {}
    for node in list(graph.nodes):
        if written.intersection(node.all_input_nodes):
            written.add(node)
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op != "call_function" or node in written or random:
            continue
        same = first.setdefault(
            (node.target, repr(node.args), repr(node.kwargs)), node
        )  # as text 1, 1.0 and True differ
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _script_masked_calls(graph: Graph) -> None:
    """Replace calls with an output mask, as a convolution's backward, by scripted functions that take only tensors.

    TorchScript's tracer supports neither lists of bools nor results that a mask leaves out.
    """
    for node in list(graph.nodes):
        if not any(isinstance(argument, list) and bool in map(type, argument) for argument in node.args):
            continue
        names = {tensor: f"t{i}" for i, tensor in enumerate(node.all_input_nodes)}
        constants = [list(argument) if isinstance(argument, list) else argument for argument in node.args]
        arguments = [names[argument] if isinstance(argument, Node) else repr(argument) for argument in constants]
        parts = list(node.users)  # each takes one result
        function = torch.jit.CompilationUnit(
            f"def call({', '.join(f'{name}: Tensor' for name in names.values())}):\n"
            f"    r = torch.ops.{node.target.overloadpacket}({', '.join(arguments)})\n"
            f"    return ({''.join(f'r[{part.args[1]}], ' for part in parts)})\n"
        ).call
        with graph.inserting_before(node):
            call = graph.call_function(_as_python(function), tuple(names))
        for i, part in enumerate(parts):
            part.args = (call, i)
        graph.erase_node(node)


def _as_python(function: torch.jit.ScriptFunction) -> Callable:
    """The function as a Python function, whose name a graph needs."""

    def scripted(*tensors: Tensor) -> tuple[Tensor, ...]:
        return function(*tensors)

    return scripted
