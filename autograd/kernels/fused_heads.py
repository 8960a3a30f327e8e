"""Talking heads on a GPU, in one launch: mixed = W_w softmax(scale W_l scores), over maps (B, heads, M, N); and its
gradient, in another.

A team of threads has a row: all heads of one query of one image. Each thread keeps a few keys, of all heads, in
registers, so that mixing heads needs no other thread, and the maps are read and written once. A team is a warp, or as
many as keep it to VALUES registers.

The gradient computes the softmax again from the scores: nothing of the size of the maps is kept for it. With p the
softmax and d the gradient for the mixed maps:

    dW_w = sum d p^T,   dp = W_w^T d,   ds = p (dp - sum_keys(p dp)),   dW_l = scale sum ds scores^T

and scale W_l^T ds for the scores. The sums for the weights, over all keys, queries and images, are products of heads x
keys matrices: threads exchange a few keys at a time through shared memory, each adds up one pair of heads, and every
team leaves a partial sum.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, compiled
from .parts import merge

MOST_HEADS, MOST_KEYS = 16, 1024
VALUES = 32  # of a row, in the registers of a thread
MOST_BLOCKS = 1024  # for the gradient

_ROWS = """
#define UNROLL _Pragma("unroll")
#define SYNC() (TEAM > 32 ? __syncthreads() : __syncwarp())
#define EACH_HEAD(h) UNROLL for (int h = 0; h < HEADS; h++)
#define EACH_KEY(j) UNROLL for (int j = 0; j < PER; j++)
typedef wide_t Values[HEADS][PER];  // of the keys `key(0)`, `key(1)` etc.

__device__ int key(int j) { return threadIdx.x % TEAM + j * TEAM; }

__device__ __forceinline__ void load(Values& x, const T* row, long long head, int n) {
    EACH_HEAD(h) EACH_KEY(j) x[h][j] = key(j) < n ? wide_t(row[h * head + key(j)]) : wide_t(0);
}

__device__ __forceinline__ void store(const Values& x, T* row, long long head, int n) {
    EACH_HEAD(h) EACH_KEY(j) if (key(j) < n) row[h * head + key(j)] = x[h][j];
}

template <bool TRANSPOSED> __device__ __forceinline__ void mix(Values& x, const wide_t* weight) {
    EACH_KEY(j) {
        wide_t y[HEADS];
        EACH_HEAD(h) {
            y[h] = 0;
            EACH_HEAD(o) y[h] += weight[TRANSPOSED ? o * HEADS + h : h * HEADS + o] * x[o][j];
        }
        EACH_HEAD(h) x[h][j] = y[h];
    }
}

template <class Combine> __device__ __forceinline__ void over_team(wide_t (&value)[HEADS], Combine combine) {
    EACH_HEAD(h) value[h] = over_warp(value[h], combine);
    if (TEAM == 32) return;
    __shared__ wide_t of_warp[HEADS][TEAM / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) EACH_HEAD(h) of_warp[h][threadIdx.x / 32] = value[h];
    __syncthreads();
    EACH_HEAD(h) {
        value[h] = of_warp[h][0];
        for (int warp = 1; warp < TEAM / 32; warp++) value[h] = combine(value[h], of_warp[h][warp]);
    }
}

__device__ __forceinline__ void softmax(Values& x, int n) {
    wide_t top[HEADS], sum[HEADS];
    EACH_HEAD(h) {
        top[h] = wide_t(-1) / wide_t(0);
        EACH_KEY(j) if (key(j) < n) top[h] = Max()(top[h], x[h][j]);
    }
    over_team(top, Max());
    EACH_HEAD(h) {
        if (isinf(top[h])) top[h] = 0;
        sum[h] = 0;
        EACH_KEY(j) {
            x[h][j] = key(j) < n ? exp(x[h][j] - top[h]) : wide_t(0);
            sum[h] += x[h][j];
        }
    }
    over_team(sum, Sum());
    EACH_HEAD(h) EACH_KEY(j) x[h][j] = sum[h] == 0 ? wide_t(0) : x[h][j] / sum[h];
}

#define WEIGHTS                                                                     \\
    __shared__ wide_t l[HEADS * HEADS], w[HEADS * HEADS];                           \\
    for (int i = threadIdx.x; i < HEADS * HEADS; i += blockDim.x) {                 \\
        l[i] = scale * weight_l[i];                                                 \\
        w[i] = weight_w[i];                                                         \\
    }                                                                               \\
    __syncthreads();                                                                \\
    const long long head = (long long)queries * width;
// the first value of a row: maps (B, heads, queries, width), of which the first n keys are used
#define START(row) ((row / queries * HEADS * queries + row % queries) * width)
"""
_FORWARD = """
extern "C" __global__ void __launch_bounds__(BLOCK) mix_softmax_mix(
    T* maps, const wide_t* weight_l, const wide_t* weight_w, wide_t scale, long long rows, int queries, int n, int width
) {
    WEIGHTS
    const long long row = ROW;
    if (row >= rows) return;
    Values x;
    load(x, maps + START(row), head, n);
    mix<false>(x, l);
    softmax(x, n);
    mix<false>(x, w);
    store(x, maps + START(row), head, n);
}
"""
_GRAD = """
constexpr int PAIRS = (HEADS * HEADS + TEAM - 1) / TEAM;  // of heads, of a thread
constexpr int KEYS = TEAM < 128 ? TEAM : 128;  // that are exchanged at a time
constexpr int STEP = HEADS | 1;  // odd: neighbouring keys are in different banks of memory

__device__ __forceinline__ void add_products(wide_t (&sums)[PAIRS], const Values& a, const Values& b, wide_t* shared) {
    const int thread = threadIdx.x % TEAM;
    wide_t *left = shared, *right = shared + KEYS * STEP;
    EACH_KEY(j) for (int first = 0; first < TEAM; first += KEYS) {
        SYNC();
        const int own = thread - first;
        if (0 <= own && own < KEYS) EACH_HEAD(h) {
            left[own * STEP + h] = a[h][j];
            right[own * STEP + h] = b[h][j];
        }
        SYNC();
        for (int p = 0; p < PAIRS; p++) {
            const int pair = thread + p * TEAM;
            if (pair < HEADS * HEADS)
                for (int k = 0; k < KEYS && first + k < TEAM; k++)
                    sums[p] += left[k * STEP + pair / HEADS] * right[k * STEP + pair % HEADS];
        }
    }
}

// In place: `maps`, the scores, become their gradient, and `d`, the gradient for the mixed maps, becomes these.
extern "C" __global__ void __launch_bounds__(BLOCK) mix_softmax_mix_grad(
    T* maps, T* d, const wide_t* weight_l, const wide_t* weight_w, wide_t scale, wide_t* parts, long long rows,
    int queries, int n, int width
) {
    constexpr int TEAMS = TEAM == 32 ? 4 : 1;  // of a block
    __shared__ wide_t exchanged[TEAMS][2 * KEYS * STEP];
    WEIGHTS
    wide_t *shared = exchanged[threadIdx.x / TEAM], of_l[PAIRS] = {}, of_w[PAIRS] = {};
    for (long long row = ROW; row < rows; row += (long long)gridDim.x * TEAMS) {
        Values p, x;
        load(p, maps + START(row), head, n);
        mix<false>(p, l);
        softmax(p, n);
        load(x, d + START(row), head, n);
        add_products(of_w, x, p, shared);
        mix<true>(x, w);
        wide_t dot[HEADS];
        EACH_HEAD(h) {
            dot[h] = 0;
            EACH_KEY(j) dot[h] += p[h][j] * x[h][j];
        }
        over_team(dot, Sum());
        EACH_HEAD(h) EACH_KEY(j) x[h][j] = p[h][j] * (x[h][j] - dot[h]);
        mix<false>(p, w);
        store(p, d + START(row), head, n);
        load(p, maps + START(row), head, n);  // the scores again: to keep them would take a third of the registers
        add_products(of_l, x, p, shared);
        mix<true>(x, l);
        store(x, maps + START(row), head, n);
    }
    const long long teams = (long long)gridDim.x * TEAMS;
    for (int i = 0; i < PAIRS; i++) {
        const int pair = threadIdx.x % TEAM + i * TEAM;
        if (pair >= HEADS * HEADS) continue;
        parts[pair * teams + ROW] = scale * of_l[i];
        parts[(HEADS * HEADS + pair) * teams + ROW] = of_w[i];
    }
}
"""


def fits(heads: int, keys: int) -> bool:
    """True if a row has its place in registers."""
    return heads <= MOST_HEADS and keys <= MOST_KEYS


def empty_maps(like: Array, shape: tuple[int, ...]) -> Array:
    """Maps (B, heads, M, N) whose rows start at multiples of 16 bytes: then cuBLAS is faster with float16."""
    *others, keys = shape
    return array_module(like).empty((*others, -(-keys // 8) * 8), like.dtype)[..., :keys]


def mix_softmax_mix(maps: Array, weight_l: Array, weight_w: Array, scale: float) -> Array:
    """Overwrite scores, from `empty_maps`, with the mixed maps."""
    kernel, threads, blocks, _ = _launch("mix_softmax_mix", maps)
    kernel((blocks,), (threads,), (maps, *_weights(maps, weight_l, weight_w, scale), *_sizes(maps)))
    return maps


def mix_softmax_mix_grad(maps: Array, d: Array, weight_l: Array, weight_w: Array, scale: float) -> tuple[Array, Array]:
    """Gradients for weight_l and weight_w.

    `maps`, the scores, become their gradient, and `d`, the gradient for the mixed maps, becomes the mixed maps.
    """
    kernel, threads, blocks, teams = _launch("mix_softmax_mix_grad", maps)
    blocks, weights = min(blocks, MOST_BLOCKS), _weights(maps, weight_l, weight_w, scale)
    parts = array_module(maps).empty((2, *weight_l.shape, blocks * teams), weights[0].dtype)
    kernel((blocks,), (threads,), (maps, d, *weights, parts, *_sizes(maps)))
    dweight_l, dweight_w = merge(parts, weight_l.dtype)
    return dweight_l, dweight_w


def _weights(maps: Array, weight_l: Array, weight_w: Array, scale: float) -> tuple[Any, ...]:
    xp, wide = array_module(maps), np.promote_types(maps.dtype, np.float32)
    return xp.ascontiguousarray(weight_l, wide), xp.ascontiguousarray(weight_w, wide), wide.type(scale)


def _sizes(maps: Array) -> tuple[Any, ...]:
    """The number of rows, of queries and keys, and the distance from one query to the next."""
    batch, _, queries, keys = maps.shape
    return np.int64(batch * queries), np.int32(queries), np.int32(keys), np.int32(maps.strides[-2] // maps.itemsize)


def _launch(name: str, maps: Array) -> tuple[Any, int, int, int]:
    """A kernel, the threads of a block, the number of blocks, and the teams of each."""
    batch, heads, queries, keys = maps.shape
    kernel, warps = _compiled(name, maps.dtype.name, heads, keys)
    teams = THREADS // 32 if warps == 1 else 1  # larger teams meet at barriers of the whole block
    return kernel, 32 * warps * teams, -(-batch * queries // teams), teams


@cache
def _compiled(name: str, dtype: str, heads: int, keys: int) -> tuple[Any, int]:
    """A kernel, and the warps of a team."""
    warps = next(count for count in range(1, 33) if heads * -(-keys // (32 * count)) <= VALUES)
    block = THREADS if warps == 1 else 32 * warps  # the compiler must know, or it takes too many registers for one
    constants = f"constexpr int HEADS = {heads}, PER = {-(-keys // (32 * warps))}, BLOCK = {block};\n"
    source = _FORWARD if name == "mix_softmax_mix" else _GRAD
    return compiled(constants + _ROWS + source, name, dtype, 32 * warps), warps
