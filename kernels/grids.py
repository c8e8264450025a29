"""Writes grids.def from the data in PyPI's gguf:  python kernels/grids.py > kernels/grids.def

The grids are a fact of the file format: which points of a lattice the blocks of IQ1, IQ2 and IQ3 can name. An entry is
the numbers of its levels, the first value's in the lowest bits: two bits each for grids of eight values, three for
grids of four."""
from gguf import quants

GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S")
WIDTH = 118


def entries(name):
    """The levels of a grid and its entries as numbers."""
    kind = getattr(quants, name)
    kind.init_grid()
    points = kind.grid.reshape(kind.grid_shape)
    levels, bits = [int(level) for level in kind.grid_map], {8: 2, 4: 3}[points.shape[1]]
    return levels, [sum(levels.index(value) << bits * i for i, value in enumerate(point)) for point in points.tolist()]


def lines(items, end):
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > WIDTH:
            yield line.ljust(WIDTH) + end
            line = "   "
        line += " " + item
    yield line


if __name__ == "__main__":
    print("/* Written by grids.py; do not edit. Source: the tables of PyPI's gguf. */")
    for name in GRIDS:
        levels, found = entries(name)
        print(f"\n#define {name}_LEVELS(F) {', '.join(f'F({level})' for level in levels)}")
        print(f"#define {name}_GRID(F) \\")
        items = [f"F({entry:#06x})," for entry in found]
        print("\n".join(lines(items, " \\")).rstrip(","))
