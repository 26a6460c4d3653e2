"""What holds for the package as a whole: imports go down only, and modules can be read in one sitting."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import flower_fedclust

FOLDER = Path(flower_fedclust.__file__).parent
MODULES = {
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FOLDER.rglob("*.py")
}


@cache
def _parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(importer, path):
    """Return the modules of ours that one imports: at the top, in a function, or for types alone."""
    found = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inside = {f"{node.module}.{name.name}" for name in node.names}
            found |= inside & MODULES.keys() if inside <= MODULES.keys() else {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & MODULES.keys()
    # The face of another folder is read before a module in it.
    faces = {name.rpartition(".")[0] for name in found} & MODULES.keys()
    return found | {face for face in faces if not importer.startswith(face)}


def test_no_module_imports_one_that_imports_it():
    imports = {name: _imported(name, path) for name, path in MODULES.items()}
    assert sum(map(len, imports.values())) > 500
    TopologicalSorter(imports).prepare()  # a CycleError names the circle


def test_no_folder_imports_one_that_imports_it():
    folders = {}
    for name, path in MODULES.items():
        folder = name.split(".")[:2][-1]
        others = {other.split(".")[1] for other in _imported(name, path) if "." in other}
        folders.setdefault(folder, set()).update(others - {folder})
    assert folders["numerics"] == set()
    TopologicalSorter(folders).prepare()


def test_the_body_of_a_function_has_at_most_60_lines():
    too_long = []
    for name, path in MODULES.items():
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef):
                body = (
                    node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                )
                if node.end_lineno - body[0].lineno + 1 > 60:
                    too_long.append(f"{name}.{node.name}")
    assert too_long == []
