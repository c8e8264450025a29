"""fast.gated_delta_update against the rule as it is written, in float64."""
import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa


def inputs(b, t, hk, hv, dk, dv, seed=0):
    r = np.random.default_rng(seed)
    q, k = r.standard_normal((2, b, t, hk, dk)) * 0.3
    return q, k, r.standard_normal((b, t, hv, dv)), r.uniform(0.5, 1, (b, t, hv)), r.uniform(0, 1, (b, t, hv))


def rule(q, k, v, gamma, beta, state=None, mask=None):
    b, t, hv, dv = v.shape
    group = hv // k.shape[2]
    s = np.zeros((b, hv, dv, k.shape[3])) if state is None else state.copy()
    out = np.zeros(v.shape)
    for n, i, h in np.ndindex(b, t, hv):
        if mask is not None and not mask[n, i]:
            continue
        key, query = k[n, i, h // group], q[n, i, h // group]
        s[n, h] *= gamma[n, i, h]
        s[n, h] += np.outer((v[n, i, h] - s[n, h] @ key) * beta[n, i, h], key)
        out[n, i, h] = s[n, h] @ query
    return out, s


def arrays(values, dtype=mx.float32):
    return [mx.array(x).astype(dtype) for x in values]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1), (1, 5, 1, 2, 33, 7), (2, 3, 2, 4, 64, 16), (1, 4, 3, 3, 17, 5)])
@pytest.mark.parametrize("with_state", [False, True])
def test_matches_the_rule(shape, with_state):
    b, t, _, hv, dk, dv = shape
    values = inputs(*shape)
    r = np.random.default_rng(1)
    state = r.standard_normal((b, hv, dv, dk)) if with_state else None
    mask = r.integers(0, 2, (b, t)).astype(bool)
    out, end = mx.fast.gated_delta_update(*arrays(values), None if state is None else mx.array(state), mx.array(mask))
    want, want_end = rule(*values, state, mask)
    np.testing.assert_allclose(np.array(out), want, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(np.array(end), want_end, rtol=2e-5, atol=2e-6)


def test_in_two_parts_is_in_one():
    values = arrays(inputs(1, 6, 1, 2, 32, 8))
    whole, end = mx.fast.gated_delta_update(*values)
    first, middle = mx.fast.gated_delta_update(*[x[:, :4] for x in values])
    second, last = mx.fast.gated_delta_update(*[x[:, 4:] for x in values], middle)
    assert np.array_equal(np.array(whole[:, :4]), np.array(first)) and np.array_equal(np.array(whole[:, 4:]),
                                                                                      np.array(second))
    assert np.array_equal(np.array(end), np.array(last))


def test_gradient_is_that_of_finite_differences():
    values = inputs(1, 3, 1, 2, 5, 4)
    loss = lambda *x: sum(a.sum() for a in mx.fast.gated_delta_update(*x))    # noqa: E731
    grads = mx.grad(loss, argnums=(0, 1, 2, 3, 4))(*arrays(values))
    for i, g in enumerate(grads):
        at = tuple(0 for _ in values[i].shape)
        change = [v.copy() for v in values]
        change[i][at] += 1e-4
        up = sum(x.sum() for x in rule(*change))
        change[i][at] -= 2e-4
        slope = (up - sum(x.sum() for x in rule(*change))) / 2e-4
        assert abs(np.array(g)[at] - slope) < 1e-3 * max(1, abs(slope))


def test_output_keeps_the_dtype_and_shapes_are_checked():
    values = inputs(1, 2, 1, 2, 8, 4)
    out, end = mx.fast.gated_delta_update(*arrays(values, mx.bfloat16))
    assert out.dtype == mx.bfloat16 and end.dtype == mx.float32
    q, k, v, gamma, beta = arrays(values)
    with pytest.raises(ValueError, match="gated_delta_update"):
        mx.fast.gated_delta_update(q, k[:, :1], v, gamma, beta)
    with pytest.raises(ValueError, match="gated_delta_update"):
        mx.fast.gated_delta_update(q, k, v, gamma[..., :1], beta)
