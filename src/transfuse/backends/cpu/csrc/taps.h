// Which taps of an axis meet which inputs: found directly, so that what it costs follows the pairs there
// are, however wide a stride or a dilation is.
#pragma once
#include <algorithm>
#include <cstdint>

#include "program.h"

namespace TF_NAMESPACE {

// Output o gathers input i through tap k where i * stride = o + padding - k * dilation. For one output
// these are every `step`-th tap, from one that the inverse of the dilation modulo the stride tells.
class Taps {
  public:
    int64_t step;

    Taps(const transfuse_program& p, int axis)
        : count(p.kernel[axis]), stride(p.stride[axis]), dilation(p.dilation[axis]), padding(p.padding[axis]) {
        int64_t a = stride, b = dilation % stride, x = 0, y = 1;  // y * dilation = b modulo stride
        while (b) {
            const int64_t q = a / b, rest = a % b, next = x - q * y;
            a = b, b = rest, x = y, y = next;
        }
        shared = a;  // the greatest common divisor
        step = stride / shared;
        inverse = (x % step + step) % step;
    }

    // The first tap k with k * dilation = at modulo stride; -1 for none.
    int64_t first(int64_t at) const {
        if (at < 0) at = at % stride + stride;  // a negative remainder would make a negative tap
        return at % shared ? -1 : at / shared % step * inverse % step;
    }

    // f(tap, input) for each tap through which output o meets an input lo <= i < inputs, in ascending order;
    // lo <= 0, and inputs below 0 stand for zeros.
    template <class F> void each(int64_t o, int64_t lo, int64_t inputs, F f) const {
        const int64_t at = o + padding, start = first(at);
        if (start < 0 || at < lo * stride) return;  // the first tap meets the last input of all taps
        const int64_t beyond = at - (inputs - 1) * stride;  // the least k * dilation
        const int64_t least = beyond > 0 ? (beyond + dilation - 1) / dilation : 0;
        const int64_t end = std::min(count, (at - lo * stride) / dilation + 1);
        const int64_t skipped = least > start ? (least - start + step - 1) / step * step : 0;
        for (int64_t k = start + skipped; k < end; k += step) f(k, (at - k * dilation) / stride);
    }

  private:
    int64_t count, stride, dilation, padding, shared, inverse;
};

}  // namespace TF_NAMESPACE
