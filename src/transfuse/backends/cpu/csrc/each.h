// Each: every element of its own.
#pragma once
#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

template <class T> static void each(const transfuse_sweep& s, int threads) {
    const int axis = s.kept - 1, row_axis = s.kept - 2;
    const Reader<T> reader(s.values, s.before, row_axis, axis);
    const transfuse_view& out = s.outs[0];
    const Extent all = {s.sizes[row_axis], s.sizes[axis]};
    // Where a view lies across, blocks are about square, so that lines of memory are used whole.
    bool turns = false;
    for (int k = 0; k < s.values_count; k++)
        turns = turns || (s.values[k].strides[row_axis] && s.values[k].strides[row_axis] < s.values[k].strides[axis]);
    const int64_t square = 64, few = std::min(square, all.rows);
    const int64_t widest = turns ? std::max(square, BLOCK_VALUES / few / square * square) : BLOCK_VALUES;
    Extent block = {0, std::min(all.width, widest)};
    block.rows = std::min(all.rows, std::max<int64_t>(1, BLOCK_VALUES / block.width));
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
        for (int64_t b = item * some; b < std::min(blocks, (item + 1) * some); b++) {
            const int64_t row = b / along % down * block.rows, first = b % along * block.width, o = b / along / down;
            const auto offset = [&](const transfuse_view& v) {
                return offset_of(v, s.sizes, 0, row_axis, o) + row * v.strides[row_axis] + first * v.strides[axis];
            };
            for (int k = 0; k < s.values_count; k++) at[k] = offset(s.values[k]);
            const Extent e = {std::min(block.rows, all.rows - row), std::min(block.width, all.width - first)};
            const Steps steps = reader.steps(out);
            const bool direct = steps.row == e.width || e.rows == 1 || e.width >= LONG_ROW;
            if (out.element == COMPUTED<T> && steps.value == 1 && direct) {
                reader.into(static_cast<T*>(out.data) + offset(out), steps.row, at, e, room.get());
            } else {
                T* images = room.get() + reader.count() * e.values();
                reader.into(images, e.width, at, e, room.get());
                write_block(out, offset(out), e, steps, images);
            }
        }
    });
}

}  // namespace TF_NAMESPACE
