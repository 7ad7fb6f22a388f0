// How often a walk over all tiles copies the inputs: neighbours read some of them, too.
#pragma once
#include <algorithm>

#include "division.h"

namespace TF_NAMESPACE {

// Copies of an input on the average, where a convolution stands alone. Parts of a tile's channels share one.
template <class T> static double copies_of(transfuse_program program, bool sideways) {
    program.input_element = COMPUTED<T>;  // as values of a map are
    const Layer p = Division<T>::parts(program, sideways, program.spatial);
    const Division<T> division(p, program.spatial);
    const int64_t* extents = division.at.back().extents;
    int64_t size[3];
    division.divide(0, 0, size_t(p.steps_count), size);
    division.halve(0, 0, size_t(p.steps_count), size);
    double found = 1;
    for (int a = 0; a < 3; a++) {
        const int64_t s = p.stride[a], n = p.spatial[a], reach = p.dilation[a] * (p.kernel[a] - 1);
        int64_t copied = 0;
        for (int64_t lo = 0; lo < extents[a]; lo += size[a]) {
            const int64_t first = ceiling(std::max<int64_t>(0, lo + p.padding[a] - reach), s);
            const int64_t last = (std::min(lo + size[a], extents[a]) - 1 + p.padding[a]) / s;
            copied += std::max<int64_t>(0, std::min(n - 1, last) - first + 1);
        }
        // Planes are read once for all tiles that follow one another through them, where each reads most.
        const bool follow = a == 0 && size[1] == extents[1] && size[2] == extents[2];
        if (!follow || size[0] == extents[0]) found *= double(copied) / double(n);
    }
    return found;
}

// Whether a convolution that nothing stands before reads its inputs where they lie, but for tiles at the ends of rows.
template <class T> static bool reads_in_place(const transfuse_program& program, bool sideways) {
    const Layer p = Division<T>::parts(program, sideways, program.spatial);
    return Inputs<T>(p, nullptr, p.input_element, p.input_strides, p.spatial).in_place();
}

}  // namespace TF_NAMESPACE
