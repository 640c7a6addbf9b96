"""Record a function of tensors, with its backward pass, as a list of tensor operations.

PyTorch's tracer `make_fx` records the operations of the dispatcher, forward and backward, without Python, autograd or
TensorDict. TorchScript's interpreter runs the list some microseconds faster for each operation than Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from trainer.networks.scripting import script
from trainer.networks.simplifying import simplify


def record(
    gradients: Callable, example: list[Tensor], execution: str, then: Callable | None = None,
    more: Sequence[Tensor] = (),
) -> Callable:  # fmt: skip
    """Record `gradients` on copies of `example` and return what runs the recording.

    Args:
        gradients: from `make_gradients`.
        example: its arguments.
        execution: `trace` or `compile`.
        then: called with the results and with `more` in the same recording, which returns what it returns; only with
            `trace`.
        more: further arguments of the recording.
    """
    recorded = operations(gradients, [t.clone() for t in example])
    simplify(recorded)
    graph = recorded.graph
    if execution == "trace":
        _script_masked_calls(graph)
    graph.set_codegen(CodeGen())
    recorded.recompile()
    with torch.no_grad():
        if execution == "compile":
            return torch.compile(recorded, fullgraph=True, dynamic=False)
        scripted = script(_followed(recorded, len(example), then), [t.clone() for t in (*example, *more)])
        # The calls of `_script_masked_calls` are pointers to functions that end with `recorded`: put their bodies in.
        torch._C._jit_pass_inline(scripted.graph)
        return scripted


def operations(function: Callable, example: Sequence[Tensor]) -> GraphModule:
    """The operations of a function of tensors, by `make_fx`.

    `make_fx` notes the shape of each value in a mode for fake tensors. One mode serves all: by itself it makes one for
    each value, which takes a third of its time.
    """
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        return make_fx(function, tracing_mode="real")(*example)


def _followed(recorded: Callable, count: int, then: Callable | None) -> Callable:
    """A recording of `count` arguments with what follows it, see `record`."""
    if then is None:
        return recorded
    return lambda *tensors: then(recorded(*tensors[:count]), tensors[count:])


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
