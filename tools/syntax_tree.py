"""The nodes of a syntax tree."""

import ast


def walked(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all below it in the order of `ast.walk`, in half of its time; without contexts."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                nodes.append(value)
    return nodes
