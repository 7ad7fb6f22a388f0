// Axes that need not be told apart: a kernel of one tap does not see where rows end.
#pragma once
#include "before.h"
#include "division.h"
#include "program.h"

namespace TF_NAMESPACE {

// Whether positions along axes a and a + 1 follow one another in a tensor of such strides.
static inline bool follow(const int64_t* strides, int a, const int64_t* spatial) {
    return spatial[a] == 1 || strides[2 + a] == spatial[a + 1] * strides[3 + a];
}

// The same program with long rows in place of many short ones, where no step needs these and all tensors lie so.
static transfuse_program flattened(const transfuse_program& program) {
    transfuse_program p = program;
    if (pool_of(p)) return p;
    for (int a = 0; a < 3; a++)
        if (p.kernel[a] != 1 || p.stride[a] != 1 || p.padding[a] || p.output_padding[a]) return p;
    for (int i = 0; i < p.steps_count; i++)
        if (is_window(p.steps[i].op)) return p;
    for (int a = 0; a < 2; a++) {
        bool one = follow(p.input_strides, a, p.spatial) && follow(p.output_strides, a, p.spatial);
        each_operand(p, [&](const transfuse_operand& each) { one = one && follow(each.strides, a, p.spatial); });
        if (!one) continue;
        p.spatial[a + 1] *= p.spatial[a];
        p.spatial[a] = 1;
    }
    return p;
}

}  // namespace TF_NAMESPACE
