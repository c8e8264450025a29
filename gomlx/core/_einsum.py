"""einsum and einsum_path: sums of products written with subscripts, as a sequence of products of two tensors."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gomlx import _gomlx
from gomlx._gomlx import array
from gomlx.core import _dtypes as dtypes

if TYPE_CHECKING:
    from gomlx._gomlx import StreamOrDevice

__all__ = ["einsum", "einsum_path"]


def _parse(subscripts, operands):
    """(subscripts of the inputs, of the output), with letters instead of an ellipsis."""
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {len(operands)} operands for {len(terms)} subscripts in {subscripts!r}")
    free = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    wide = 0
    for term, x in zip(terms, operands):
        if "..." in term:
            wide = max(wide, x.ndim - len(term.replace("...", "", 1)))
    if wide > len(free):
        raise ValueError(f"einsum: too many dimensions in {subscripts!r}")
    batch = "".join(free[:max(wide, 0)])

    def spelled(term, ndim):
        if "..." in term:
            n = ndim - len(term.replace("...", "", 1)) if ndim is not None else wide
            term = term.replace("...", batch[len(batch) - n:] if n > 0 else "", 1)
        for c in term:
            if not c.isalpha() or not c.isascii():
                raise ValueError(f"einsum: subscripts must be letters, got {c!r}")
        return term

    terms = [spelled(term, x.ndim) for term, x in zip(terms, operands)]
    for i, (term, x) in enumerate(zip(terms, operands)):
        if len(term) != x.ndim:
            raise ValueError(f"einsum: {len(term)} subscripts for operand {i}, which has {x.ndim} dimensions")
    joined = "".join(terms)
    if arrow:
        output = spelled(output, None)
    else:
        output = batch + "".join(sorted(c for c in set(joined) if joined.count(c) == 1 and c not in batch))
    if len(set(output)) != len(output):
        raise ValueError(f"einsum: a subscript is repeated in the output {output!r}")
    for c in output:
        if c not in joined:
            raise ValueError(f"einsum: the output's subscript {c!r} is in no input")
    return terms, output


def _sizes(terms, operands):
    sizes = {}
    for i, (term, x) in enumerate(zip(terms, operands)):
        for d, c in enumerate(term):
            n = x.shape[d]
            if n != x.shape[term.index(c)]:       # a diagonal: nothing is repeated for it
                raise ValueError(f"einsum: dimensions {term.index(c)} and {d} of operand {i} are both {c!r}, but have "
                                 f"{x.shape[term.index(c)]} and {n} items")
            if sizes.get(c, 1) == 1:
                sizes[c] = n
            elif n not in (1, sizes[c]):
                raise ValueError(f"einsum: dimension {d} of operand {i} has {n} items, but {c!r} has {sizes[c]}")
    return sizes


def _volume(letters, sizes):
    return math.prod(sizes[c] for c in letters)


def _after(pair, terms, output):
    """The subscripts that are left when the pair is contracted: another operand or the output needs them."""
    others = set(output).union(*(terms[i] for i in range(len(terms)) if i not in pair))
    return "".join(c for c in dict.fromkeys("".join(terms[i] for i in pair)) if c in others)


def _flops(letters, contracted, n_terms, sizes):
    return _volume(letters, sizes) * max(1, n_terms - 1 + bool(contracted))


def _greedy(terms, output, sizes):
    """Pairs, each the one whose result is smallest against what it takes away; positions as in NumPy: the pair is
    removed, its result appended."""
    terms, path = list(terms), []
    while len(terms) > 2:
        best = None
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                left = _after((i, j), terms, output)
                gain = _volume(left, sizes) - _volume(set(terms[i]), sizes) - _volume(set(terms[j]), sizes)
                cost = _volume(set(terms[i] + terms[j]), sizes)
                shares = bool(set(terms[i]) & set(terms[j]))
                rank = (not shares, gain, cost)
                if best is None or rank < best[0]:
                    best = rank, (i, j), left
        _, pair, left = best
        path.append(pair)
        terms = [t for k, t in enumerate(terms) if k not in pair] + [left]
    path.append(tuple(range(len(terms))))
    return path


def _cost(path, terms, output, sizes):
    """(operations, largest number of subscripts) of the path."""
    terms, total, widest = list(terms), 0, 0
    for pair in path:
        letters = set("".join(terms[i] for i in pair))
        left = _after(pair, terms, output) if len(pair) < len(terms) else output
        total += _flops(letters, letters - set(left), len(pair), sizes)
        widest = max(widest, len(letters))
        terms = [t for k, t in enumerate(terms) if k not in pair] + [left]
    return total, widest


def einsum_path(subscripts: str, *operands: array) -> tuple[list[tuple[int, ...]], str]:
    """(the pairs that einsum contracts one after the other, a description of their cost)."""
    terms, output = _parse(subscripts, operands)
    sizes = _sizes(terms, operands)
    path = _greedy(terms, output, sizes)
    letters = set("".join(terms))
    naive = _flops(letters, letters - set(output), len(terms), sizes)
    best, widest = _cost(path, terms, output, sizes)
    if best > naive or len(terms) <= 2:
        path, best, widest = [tuple(range(len(terms)))], naive, len(letters)
    text = (f"  Complete contraction:  {','.join(terms)}->{output}\n         Naive scaling:  {len(letters)}\n"
            f"     Optimized scaling:  {widest}\n      Naive FLOP count:  {naive}\n  Optimized FLOP count:  {best}\n")
    return path, text


def _unique(x, term):
    """x with a repeated subscript's axes taken as their diagonal."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i = term.index(c)
            j = term.index(c, i + 1)
            x = x.diagonal(0, i, j)
            term = term[:i] + term[i + 1:j] + term[j + 1:] + c
    return x, term


def _summed(x, term, keep):
    gone = [i for i, c in enumerate(term) if c not in keep]
    return (x.sum(gone) if gone else x), "".join(c for c in term if c in keep)


def _laid_out(x, term, order, sizes):
    """x with its axes in the order, axes of size 1 for subscripts it lacks."""
    x = x.transpose([term.index(c) for c in order if c in term]) if len(term) > 1 else x
    return x.reshape([x.shape[[c for c in order if c in term].index(c)] if c in term else 1 for c in order])


def _product(x, tx, y, ty, keep, sizes):
    """Two tensors contracted over the subscripts that both have and no other operand needs, as one matrix product."""
    x, tx = _summed(x, tx, set(keep) | set(ty))
    y, ty = _summed(y, ty, set(keep) | set(tx))
    batch = [c for c in tx if c in ty and c in keep]
    inner = [c for c in tx if c in ty and c not in keep]
    rows, columns = [c for c in tx if c not in ty], [c for c in ty if c not in tx]
    order = batch + rows + columns
    floating = dtypes.issubdtype(dtypes.result_type(x, y), dtypes.inexact)
    if not inner or not floating:
        axes = [*order, *inner]
        z = _laid_out(x, tx, axes, sizes) * _laid_out(y, ty, axes, sizes)
        return (z.sum(list(range(len(order), len(axes)))) if inner else z), "".join(order)

    def matrix(a, term, first, second):
        a = _laid_out(a, term, batch + first + second, sizes)
        full = [sizes[c] for c in batch + first + second]
        a = _gomlx.broadcast_to(a, full) if list(a.shape) != full else a
        return a.reshape([*full[:len(batch)], math.prod(sizes[c] for c in first), math.prod(sizes[c] for c in second)])

    z = matrix(x, tx, rows, inner) @ matrix(y, ty, inner, columns)
    return z.reshape([sizes[c] for c in order]), "".join(order)


def einsum(subscripts: str, *operands: array, stream: StreamOrDevice = None) -> array:
    """The sum of products that the subscripts describe: "ij,jk->ik" is a matrix product. "..." means leading dimensions
    that broadcast; without "->" the output has the subscripts that occur once, in alphabetical order."""
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum: subscripts must be a str, not {type(subscripts).__name__}")
    for x in operands:
        if not isinstance(x, array):
            raise TypeError(f"einsum: operands must be arrays, not {type(x).__name__}")
    if not operands:
        raise ValueError("einsum: no operands")
    terms, output = _parse(subscripts, operands)
    sizes = _sizes(terms, operands)
    items = [_unique(x, term) for x, term in zip(operands, terms)]
    for pair in einsum_path(subscripts, *operands)[0]:
        chosen = [items[i] for i in pair]
        items = [item for k, item in enumerate(items) if k not in pair]
        x, term = chosen[0]
        for k, (y, other) in enumerate(chosen[1:]):
            keep = set(output).union(*(t for _, t in items), *(t for _, t in chosen[k + 2:]))
            x, term = _product(x, term, y, other, keep, sizes)
        items.append((x, term))
    x, term = _summed(*items[0], output)
    x = x.transpose([term.index(c) for c in output]) if len(output) > 1 else x
    full = [sizes[c] for c in output]
    return _gomlx.broadcast_to(x, full) if list(x.shape) != full else x
