"""Draw the packages and what they depend on into docs/architecture.md, from their pyprojects.

`python -m tools.draw_layers` writes the block between the marks; `--check` exits 1 if the page is out of date.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from tools.check_layers import LAYERS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- begin: tools/draw_layers.py -->\n", "<!-- end: tools/draw_layers.py -->\n"


def edges() -> dict[str, list[str]]:
    """Return the folders of this repository that each package declares, highest layers first."""
    declared = {}
    for folder in LAYERS:
        table = tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())["project"]
        declared[folder] = table["name"], [word.split(">")[0].split("[")[0] for word in table["dependencies"]]
    folders = {name: folder for folder, (name, _) in declared.items()}
    order = sorted(LAYERS, key=lambda folder: -LAYERS[folder])
    return {folder: [folders[name] for name in declared[folder][1] if name in folders] for folder in order}


def drawing(uses: dict[str, list[str]]) -> str:
    """Return the graph, one box for each layer, and the same as a table."""
    lines = ["```mermaid", "flowchart TB"]
    for layer in sorted(set(LAYERS.values()), reverse=True):
        members = "; ".join(folder for folder in uses if LAYERS[folder] == layer)
        lines += [f'    subgraph layer{layer}["layer {layer}"]', f"        {members}", "    end"]
    lines += [f"    {folder} --> {' & '.join(below)}" for folder, below in uses.items() if below]
    lines += ["```", "", "| layer | package | declares |", "|---|---|---|"]
    lines += [f"| {LAYERS[folder]} | {folder} | {', '.join(below) or '-'} |" for folder, below in uses.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the block, or check it."""
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        print(f"{PAGE.relative_to(ROOT)} has no block between {BEGIN.strip()} and {END.strip()}")
        return 1
    new = f"{before}{BEGIN}\n{drawing(edges())}\n{END}{after}"
    if "--check" in arguments:
        if new != page:
            print(f"{PAGE.relative_to(ROOT)} is out of date; run `python -m tools.draw_layers`")
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
