"""Count the lines of code in src/: without blank lines, comments and docstrings.

python benchmarks/code_size.py [--by-package]
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_lines(text: str) -> tuple[int, int, int]:
    """Return the numbers of lines of code, of docstrings and of comments in a module."""
    docstrings = {line for node in ast.walk(ast.parse(text)) for line in _docstring_lines(node)}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    return len(code), len(docstrings), len(comments - code)


def _docstring_lines(node: ast.AST) -> range:
    """Return the lines of every string that stands alone: docstrings, and those of attributes."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--by-package", action="store_true", help="one line per package")
    options = parser.parse_args()
    sums: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        code, docstrings, comments = count_lines(path.read_text(encoding="utf-8"))
        sums.update({"modules": 1, "code": code, "docstrings": docstrings, "comments": comments})
        packages[path.relative_to(SOURCE).parts[1 if path.parent != SOURCE else 0]] += code
    if options.by_package:
        for name, number in packages.most_common():
            print(f"{number:7,}  {name}")
    print(", ".join(f"{number:,} {name}" for name, number in sums.items()))


if __name__ == "__main__":
    main()
