// What the convolution reads: the program's input, or what a pool makes of it, with the maps around that.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "before.h"
#include "convert.h"
#include "memory.h"
#include "parallel.h"
#include "tile.h"

namespace TF_NAMESPACE {

template <class T> class Source {
  public:
    const void* data;
    int element;
    int64_t strides[5];
    int64_t inputs[3];  // along each axis

    // A pool's result is a contiguous tensor of the compute type.
    Source(const transfuse_program& program, int threads)
        : p(program), pool(pool_of(p)), first(p.before, pool ? pool : p.before),
          then(pool ? pool + 1 : p.before, pool ? p.before + p.before_count : p.before) {
        for (int a = 0; a < 3; a++) inputs[a] = p.spatial[a];
        for (int i = 0; i < 5; i++) strides[i] = p.input_strides[i];
        data = p.input;
        element = p.input_element;
        if (!pool) return;
        for (int a = 0; a < 3; a++) inputs[a] = windows(p.spatial[a], *pool, a);
        const int64_t plane = inputs[1] * inputs[2], volume = inputs[0] * plane;
        pooled = allocate<T>(p.batch * p.in_channels * volume);
        const bool most = pool->op == TF_MAX_POOL;
        const int64_t room = std::max(first.room(p.spatial[2]), then.room(inputs[2]));
        const auto prepare = [&] {
            return Rows{std::vector<T>(p.spatial[2]), std::vector<T>(p.spatial[2]), allocate<T>(room)};
        };
        in_parallel(threads, p.batch * p.in_channels * inputs[0], prepare, [&](Rows& rows, int64_t i) {
            const int64_t nc = i / inputs[0], z = i % inputs[0];
            for (int64_t y = 0; y < inputs[1]; y++)
                pool_row(nc, z, y, most, rows, pooled.get() + nc * volume + z * plane + y * inputs[2]);
        });
        data = pooled.get();
        element = sizeof(T) == 8 ? TF_F64 : TF_F32;
        const int64_t contiguous[5] = {p.in_channels * volume, volume, plane, inputs[2], 1};
        for (int i = 0; i < 5; i++) strides[i] = contiguous[i];
    }

  private:
    const transfuse_program& p;
    const transfuse_step* pool;
    const Before<T> first, then;  // maps before and after the pool
    Buffer<T> pooled;

    // What a thread has for itself.
    struct Rows {
        std::vector<T> line, folded;
        Buffer<T> beside;
    };

    void pool_row(int64_t nc, int64_t z, int64_t y, bool most, Rows& rows, T* to) const {
        if (most)
            fold_row(nc, z, y, [](T a, T b) { return larger(a, b); }, T(-INFINITY), T(1), rows, to);
        else
            fold_row(nc, z, y, [](T a, T b) { return a + b; }, T(0), T(pool->f0), rows, to);
    }

    template <class F>
    void fold_row(int64_t nc, int64_t z, int64_t y, F fold, T none, T factor, Rows& rows, T* to) const {
        const int64_t width = p.spatial[2], n = nc / p.in_channels, c = nc % p.in_channels;
        T *line = rows.line.data(), *folded = rows.folded.data(), *into = folded;
        const auto [d0, d1] = covered(0, z);
        const auto [h0, h1] = covered(1, y);
        for (int64_t id = d0; id < d1; id++)
            for (int64_t ih = h0; ih < h1; ih++) {
                const int64_t* st = p.input_strides;
                load_row(p.input_element, p.input, n * st[0] + c * st[1] + id * st[2] + ih * st[3], st[4], width, into);
                first(into, {1, width}, width, {{n, c, id, ih, 0}}, 1, 4, rows.beside.get());
                if (into == line)
                    for (int64_t w = 0; w < width; w++) folded[w] = fold(folded[w], line[w]);
                into = line;
            }
        if (pool->stride[2] == 2)  // by a constant the compiler takes every other one with vectors
            fold_width<2>(fold, none, 2, folded, to);
        else
            fold_width<0>(fold, none, pool->stride[2], folded, to);
        for (int64_t x = 0; x < inputs[2]; x++) to[x] *= factor;
        then(to, {1, inputs[2]}, inputs[2], {{n, c, z, y, 0}}, 1, 4, rows.beside.get());
    }

    // The values of an axis that a window has: what lies in the padding is not among them.
    std::pair<int64_t, int64_t> covered(int axis, int64_t window) const {
        const int64_t first = window * pool->stride[axis] - pool->padding[axis];
        return {std::max<int64_t>(0, first), std::min(p.spatial[axis], first + pool->kernel[axis])};
    }

    // Windows along a row, one tap after another: those that find a value in any window.
    template <int STRIDE, class F> void fold_width(F fold, T none, int64_t stride, const T* from, T* to) const {
        const int64_t padding = pool->padding[2];
        if (STRIDE) stride = STRIDE;
        std::fill(to, to + inputs[2], none);
        const int64_t begin = std::max<int64_t>(0, padding - (inputs[2] - 1) * stride);
        const int64_t end = std::min(pool->kernel[2], p.spatial[2] + padding);
        for (int64_t k = begin; k < end; k++) {
            const int64_t off = k - padding;  // 0 <= x * stride + off < width
            const int64_t lo = off < 0 ? (-off - 1) / stride + 1 : 0;
            const int64_t hi = std::min(inputs[2], (p.spatial[2] - off - 1) / stride + 1);
            for (int64_t x = lo; x < hi; x++) to[x] = fold(to[x], from[x * stride + off]);
        }
    }

    static T larger(T a, T b) { return a > b || a != a ? a : b; }
};

}  // namespace TF_NAMESPACE
