// Each: every element of its own.
#pragma once
#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

constexpr int64_t DIRECT_VALUES = 16384;  // of a block that is read and written as it lies

// Lines of memory that the next block needs, so that they come while this one is computed.
static inline void expect(const transfuse_view& v, int64_t at, Extent e, Steps s, bool writes) {
    if (s.value != 1 || (e.rows > 1 && s.row != e.width)) return;
    const char* from = static_cast<const char*>(v.data) + at * bytes_of(v.element);
    for (int64_t i = 0; i < e.values() * bytes_of(v.element); i += 64)
        writes ? __builtin_prefetch(from + i, 1) : __builtin_prefetch(from + i, 0);
}

template <class T> static void each(const transfuse_sweep& s, int threads) {
    const int axis = s.kept - 1, row_axis = s.kept - 2;
    const Reader<T> reader(s.values, s.before, row_axis, axis);
    const transfuse_view& out = s.outs[0];
    const Extent all = {s.sizes[row_axis], s.sizes[axis]};
    // Where a view lies across, blocks are about square, so that lines of memory are used whole.
    bool turns = false, direct = out.element == COMPUTED<T> && out.strides[axis] == 1;
    for (int k = 0; k < s.values_count; k++) {
        const transfuse_view& v = s.values[k];
        turns = turns || (v.strides[row_axis] && v.strides[row_axis] < v.strides[axis]);
        direct = direct && v.element == COMPUTED<T> && v.strides[axis] <= 1;
    }
    direct = direct && all.width >= DIRECT_VALUES;
    const int64_t most = direct ? DIRECT_VALUES : BLOCK_VALUES, square = 64, few = std::min(square, all.rows);
    Extent block = {0, std::min(all.width, turns ? std::max(square, most / few / square * square) : most)};
    block.rows = std::min(all.rows, std::max<int64_t>(1, most / block.width));
    const int64_t down = ceiling(all.rows, block.rows), along = ceiling(all.width, block.width);
    int64_t outer = 1, last = 0;
    for (int a = 0; a < row_axis; a++) outer *= s.sizes[a];
    for (int a = 0; a < s.kept; a++) last += (s.sizes[a] - 1) * out.strides[a];
    expect_writes(out.data, size_t(last) * bytes_of(out.element));
    const int64_t blocks = outer * down * along, some = std::max<int64_t>(1, ITEM_VALUES / block.values());
    const int64_t items = ceiling(blocks, some);
    const auto prepare = [&] { return allocate<T>(reader.room(block.values())); };
    in_parallel(int(std::min<int64_t>(threads, items)), items, prepare, [&](Buffer<T>& room, int64_t item) {
        int64_t at[UINT8_MAX];
        const int64_t end = std::min(blocks, (item + 1) * some);
        const auto row_of = [&](int64_t b) { return b / along % down * block.rows; };
        const auto first_of = [&](int64_t b) { return b % along * block.width; };
        const auto offset = [&](const transfuse_view& v, int64_t b) {
            return offset_of(v, s.sizes, 0, row_axis, b / along / down) + row_of(b) * v.strides[row_axis] +
                   first_of(b) * v.strides[axis];
        };
        const auto extent = [&](int64_t b) {
            return Extent{std::min(block.rows, all.rows - row_of(b)), std::min(block.width, all.width - first_of(b))};
        };
        for (int64_t b = item * some; b < end; b++) {
            for (int k = 0; k < s.values_count; k++) at[k] = offset(s.values[k], b);
            const Extent e = extent(b);
            const Steps steps = reader.steps(out);
            const bool straight = steps.row == e.width || e.rows == 1 || e.width >= LONG_ROW;
            if (!direct && b + 1 < end) {
                for (int k = 0; k < s.values_count; k++)
                    expect(s.values[k], offset(s.values[k], b + 1), extent(b + 1), reader.steps(s.values[k]), false);
                expect(out, offset(out, b + 1), extent(b + 1), steps, true);
            }
            if (out.element == COMPUTED<T> && steps.value == 1 && straight) {
                reader.into(static_cast<T*>(out.data) + offset(out, b), steps.row, at, e, room.get());
            } else {
                T* images = room.get() + reader.count() * e.values();
                reader.into(images, e.width, at, e, room.get());
                write_block(out, offset(out, b), e, steps, images);
            }
        }
    });
}

}  // namespace TF_NAMESPACE
