// Products of bfloat16 two by two: where the processor has them, twice as many a second as others.
//
// Two input channels lie side by side as one value of 32 bits, in the copy of the inputs as in the packed weights, so
// that to all loops they are one channel. Sums are in float, as those of single products are; denormal numbers count as
// zeros, as they do in other libraries that use the instruction.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "convert.h"
#include "program.h"
#include "vector.h"

namespace TF_NAMESPACE {

#if TF_BYTES == 64
static inline bool has_dots() {
    static const bool found = __builtin_cpu_supports("avx512bf16");
    return found;
}
// By name: the compiler would know the instruction in functions alone that are compiled for it.
template <class V> TF_INLINE V with_dots(V sum, V x, V w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}
#else
constexpr bool has_dots() { return false; }
template <class V> TF_INLINE V with_dots(V sum, V, V) { return sum; }
#endif

// Whether inputs and weights are what the instruction takes: a scaled weight is one where the factor is a power of two.
static inline bool are_dotted(const transfuse_program& p) {
    int exponent;
    return has_dots() && p.element == TF_BF16 && p.input_element == TF_BF16 && !p.before_count &&
           p.in_channels / p.groups % 2 == 0 && std::frexp(p.weight_scale, &exponent) == 0.5;
}

// Two rows of bfloat16 value by value, in memory that is seen as float.
static inline void join(const uint16_t* a, const uint16_t* b, int64_t step, int64_t n, float* to) {
    int64_t i = 0;
    if (step == 1)
        for (constexpr int L = LANES<float>; i + L <= n; i += L) {
            Narrow low, high;
            memcpy(&low, a + i, sizeof low), memcpy(&high, b + i, sizeof high);
            const Wide both = __builtin_convertvector(low, Wide) | __builtin_convertvector(high, Wide) << 16;
            memcpy(to + i, &both, sizeof both);
        }
    for (; i < n; i++) {
        const uint32_t both = uint32_t(a[i * step]) | uint32_t(b[i * step]) << 16;
        memcpy(to + i, &both, sizeof both);
    }
}

// Lines of `width` weights, exact in bfloat16, two by two.
static inline void join_lines(const float* from, int64_t lines, int64_t width, float* to) {
    for (int64_t i = 0; i < lines / 2; i++, from += 2 * width, to += width)
        for (int64_t j = 0; j < width; j++) {
            uint32_t low, high;
            memcpy(&low, from + j, sizeof low), memcpy(&high, from + width + j, sizeof high);
            low = low >> 16 | (high & 0xffff0000u);
            memcpy(to + j, &low, sizeof low);
        }
}

}  // namespace TF_NAMESPACE
