// Each: every element of its own.
#pragma once
#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

constexpr int64_t DIRECT_VALUES = 16384;  // of a block that is read and written as it lies

// Lines of memory that the next block needs, so that they come while this one is computed.
static inline void expect(const transfuse_view& v, const Lie& lie, int64_t at, int64_t row, Extent e, bool writes) {
    const Steps s = lie.steps;
    if (s.value != 1 || (e.rows > 1 && s.row != e.width) || !lie.is_run(row, e.rows)) return;
    const char* from = static_cast<const char*>(v.data) + (at + lie.offset(row)) * bytes_of(v.element);
    for (int64_t i = 0; i < e.values() * bytes_of(v.element); i += 64)
        writes ? __builtin_prefetch(from + i, 1) : __builtin_prefetch(from + i, 0);
}

template <class T> static void each(const transfuse_sweep& s, int threads) {
    const int axis = s.kept - 1, row_axis = s.kept - 2;
    Grid grid = {s.sizes, {}, axis};
    Extent all = {1, s.sizes[axis]};
    for (int a = 0; a < axis; a++) grid.axes.push_back(a), all.rows *= s.sizes[a];
    const Reader<T> reader(s.values, s.values_count, s.before, grid);
    const transfuse_view& out = s.outs[0];
    const Lie lie(grid, out);
    // Where a view lies across, blocks are about square, so that lines of memory are used whole.
    bool turns = out.strides[row_axis] && out.strides[row_axis] < out.strides[axis];
    bool direct = out.element == COMPUTED<T> && out.strides[axis] == 1;
    for (int k = 0; k < s.values_count; k++) {
        const transfuse_view& v = s.values[k];
        turns = turns || (v.strides[row_axis] && v.strides[row_axis] < v.strides[axis]);
        direct = direct && v.element == COMPUTED<T> && v.strides[axis] <= 1;
    }
    direct = direct && all.width >= DIRECT_VALUES;
    const int64_t most = direct ? DIRECT_VALUES : BLOCK_VALUES, square = 64, few = std::min(square, s.sizes[row_axis]);
    Extent block = {0, std::min(all.width, turns ? std::max(square, most / few / square * square) : most)};
    block.rows = std::min(all.rows, std::max<int64_t>(1, most / block.width));
    const int64_t down = ceiling(all.rows, block.rows), along = ceiling(all.width, block.width);
    int64_t last = 0;
    for (int a = 0; a < s.kept; a++) last += (s.sizes[a] - 1) * out.strides[a];
    expect_writes(out.data, size_t(last) * bytes_of(out.element));
    const int64_t blocks = down * along, some = std::max<int64_t>(1, ITEM_VALUES / block.values());
    const int64_t items = ceiling(blocks, some);
    struct Own {
        Buffer<T> room;
        Repeated repeated;
    };
    const auto prepare = [&] { return Own{allocate<T>(reader.room(block.values())), {}}; };
    in_parallel(int(std::min<int64_t>(threads, items)), items, prepare, [&](Own& own, int64_t item) {
        T* const room = own.room.get();
        int64_t at[UINT8_MAX];
        const int64_t end = std::min(blocks, (item + 1) * some);
        const auto row_of = [&](int64_t b) { return b / along * block.rows; };
        const auto first_of = [&](int64_t b) { return b % along * block.width; };
        const auto extent = [&](int64_t b) {
            return Extent{std::min(block.rows, all.rows - row_of(b)), std::min(block.width, all.width - first_of(b))};
        };
        const auto ahead = [&](const transfuse_view& v, const Lie& l, int64_t b, bool writes) {
            expect(v, l, first_of(b) * v.strides[axis], row_of(b), extent(b), writes);
        };
        for (int64_t b = item * some; b < end; b++) {
            const Extent e = extent(b);
            const int64_t row = row_of(b), to = first_of(b) * out.strides[axis];
            for (int k = 0; k < s.values_count; k++) at[k] = first_of(b) * s.values[k].strides[axis];
            if (!direct && b + 1 < end) {
                for (int k = 0; k < s.values_count; k++) ahead(s.values[k], reader.lies[k], b + 1, false);
                ahead(out, lie, b + 1, true);
            }
            const bool straight = lie.steps.row == e.width || e.rows == 1 || e.width >= LONG_ROW;
            if (out.element == COMPUTED<T> && lie.steps.value == 1 && straight && lie.is_run(row, e.rows)) {
                T* here = static_cast<T*>(out.data) + to + lie.offset(row);
                reader.into(here, lie.steps.row, at, row, e, room, &own.repeated);
            } else {
                T* images = room + reader.count() * e.values();
                reader.into(images, e.width, at, row, e, room, &own.repeated);
                write_rows(out, lie, to, row, e, images);
            }
        }
    });
}

}  // namespace TF_NAMESPACE
