// Which taps of an axis meet which inputs: found directly, so that what it costs follows the pairs there
// are, however wide a stride or a dilation is.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

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

// Outputs along an axis.
static inline int64_t outputs_of(const transfuse_program& p, int a) {
    return (p.spatial[a] - 1) * p.stride[a] - 2 * p.padding[a] + p.dilation[a] * (p.kernel[a] - 1) +
           p.output_padding[a] + 1;
}

// Of an axis, by tap the inputs that meet an output; and about how many outputs meet an input at all.
struct MetInputs {
    int64_t all = 0;
    double reached;
    std::vector<int64_t> of;

    MetInputs(const transfuse_program& p, int a) {
        const int64_t n = p.spatial[a], s = p.stride[a], outputs = outputs_of(p, a);
        for (int64_t k = 0; k < p.kernel[a]; k++) {
            const int64_t first = p.padding[a] - k * p.dilation[a], last = first + outputs - 1;
            const int64_t lo = first > 0 ? (first + s - 1) / s : 0, hi = last < 0 ? 0 : std::min(n, last / s + 1);
            of.push_back(std::max<int64_t>(0, hi - lo));
            all += of.back();
        }
        const double phases = double(std::min(p.kernel[a], Taps(p, a).step)) / double(s);
        reached = std::min(double(all), phases * double(outputs));
    }
};

}  // namespace TF_NAMESPACE
