// What stands before the convolution: a pool, and maps that are computed where values are copied.
#pragma once
#include <algorithm>
#include <vector>

#include "block.h"
#include "map.h"
#include "program.h"

namespace TF_NAMESPACE {

// The pool among the steps before the convolution, or null.
static inline const transfuse_step* pool_of(const transfuse_program& p) {
    for (int i = 0; i < p.before_count; i++)
        if (p.before[i].op != TF_MAP) return &p.before[i];
    return nullptr;
}

// f(operand) for those of all maps.
template <class F> static void each_operand(const transfuse_program& p, F f) {
    const auto of = [&](const transfuse_step* steps, int count) {
        for (int i = 0; i < count; i++)
            for (int k = 0; steps[i].op == TF_MAP && k < steps[i].map->code.operands_count; k++)
                f(steps[i].map->operands[k]);
    };
    of(p.before, p.before_count), of(p.steps, p.steps_count);
}

// Where values are among a tensor's: by n, c, d, h and w.
struct At {
    int64_t axes[5];
};

// Maps one after another, of values that were copied to rows.
template <class T> class Before {
  public:
    Before(const transfuse_step* begin, const transfuse_step* end) {
        for (; begin != end; begin++) {
            maps.push_back({Map<T>(&begin->map->code), begin->map->operands});
            most = std::max(most, begin->map->code.operands_count);
        }
    }
    // Those of what the convolution reads: with a pool, they are done when it is stored.
    explicit Before(const transfuse_program& p) : Before(p.before, pool_of(p) ? p.before : p.before + p.before_count) {}

    explicit operator bool() const { return !maps.empty(); }

    // Values of room that the operands of rows so far apart take.
    int64_t room(int64_t pitch) const { return most * room_of(pitch); }

    // Rows so far apart that stay in the first-level cache together.
    static int64_t some(int64_t pitch) { return std::max<int64_t>(1, BLOCK_VALUES / pitch); }

    // Rows become their images; what lies between them becomes anything. They and their values follow one another along
    // two axes, from `at` on.
    void operator()(T* values, Extent e, int64_t pitch, At at, int row_axis, int value_axis, T* beside) const {
        if (maps.empty()) return;
        for (int64_t r = 0, count; r < e.rows; r += count, at.axes[row_axis] += count) {
            count = std::min(some(pitch), e.rows - r);
            const Extent part = {count, e.width};
            for (const Each& each : maps) {
                From<T> from[UINT8_MAX];
                for (int k = 0; k < each.map.operands(); k++)
                    from[k] = found(each.operands[k], part, pitch, at, row_axis, value_axis, beside + k * room_of(pitch));
                each.map(values + r * pitch, (part.rows - 1) * pitch + part.width, from);
            }
        }
    }

  private:
    struct Each {
        Map<T> map;
        const transfuse_operand* operands;
    };
    std::vector<Each> maps;
    int most = 0;  // operands of a map

    static int64_t room_of(int64_t pitch) { return std::max(BLOCK_VALUES, pitch) + LANES<T>; }

    // An operand for rows of values: a number, as it lies in memory, or copied to rows like theirs.
    static From<T> found(const transfuse_operand& operand, Extent e, int64_t pitch, const At& at, int row_axis,
                         int value_axis, T* to) {
        int64_t first = 0;
        for (int a = 0; a < 5; a++) first += at.axes[a] * operand.strides[a];
        const Steps steps = {e.rows > 1 ? operand.strides[row_axis] : 0, e.width > 1 ? operand.strides[value_axis] : 0};
        if (!steps.row && !steps.value) {
            T number;
            load_row(operand.element, operand.data, first, 1, 1, &number);
            return {nullptr, number};
        }
        if (e.rows == 1 && steps.value == 1 && operand.element == COMPUTED<T>)
            return {static_cast<const T*>(operand.data) + first, T(0)};
        copy_block(operand.element, operand.data, first, e, steps, to, pitch);
        return {to, T(0)};
    }
};

}  // namespace TF_NAMESPACE
